"use strict";
// The select boxes in the header are filters, and the address keeps what is chosen in them: #id=value&id=value.
const all = (root, what) => Array.from(root.querySelectorAll(what));
const pick = Object.fromEntries(all(document, "header select").map((box) => [box.id, box]));
const show = (part, shown) => part.toggleAttribute("hidden", !shown); // also a part of an SVG, which has no property `hidden`

function follow(apply) {
  function fromAddress() {
    const wanted = new URLSearchParams(location.hash.slice(1));
    for (const [name, box] of Object.entries(pick)) {
      const value = wanted.get(name) || "";
      box.value = Array.from(box.options).some((option) => option.value === value) ? value : "";
    }
    apply();
  }
  for (const box of Object.values(pick))
    box.addEventListener("change", () => {
      const chosen = Object.entries(pick).filter(([, each]) => each.value).map(([name, each]) => [name, each.value]);
      location.hash = new URLSearchParams(chosen).toString();
      apply();
    });
  window.addEventListener("hashchange", fromAddress);
  fromAddress();
}
