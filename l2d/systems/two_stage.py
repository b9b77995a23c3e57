"""A classifier first; then, with the classifier frozen, a router that says which agent to trust: it, or one of the experts."""

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypedDict, Unpack

import torch
from annotated_types import Ge, Interval
from torch import Tensor, nn

from l2d.data import Batch
from l2d.data.seeds import mix
from l2d.errors import UserError, notify
from l2d.losses import DeferralLoss, ce, vanilla
from l2d.losses.base import CE, GCE, OvA, Reduction
from l2d.systems.system import Stage, System, classify


class Settings(TypedDict):
    """How the router is trained, and what the division of the training rows follows from."""

    num_train: int
    seed: int
    stage2: Literal["cross_fit", "held_out", "naive"]
    folds: Annotated[int, Ge(2)]
    share: Annotated[float, Interval(gt=0, lt=1)]
    router_epochs: Annotated[int, Ge(1)] | None


class TwoStage(System):
    """Classifier z [B, K] by cross-entropy; router r [B, 1+J] over the agents: the classifier, then the experts (Mao et al. 2023).

    `loss` teaches the router as if the classifier were the only class: its column is right where the classifier is. What
    the classifier gets right on images it was trained on says little about others, hence `stage2`:
    cross_fit: `folds` further classifiers, each trained on the rows outside its fold, answer the rows of their own;
    held_out: the router learns from a `share` of the rows, which the classifier never sees;
    naive: the router learns from the classifier's answers to its own training images.

    The outputs are [z - max z + r_0, r_1 .. r_J], [B, K+J]: their argmax is the decision.
    """

    taken_over = ("backbone.", "folds.", "division")
    division: Tensor  # which rows are in which fold, or held out; kept with the weights, for those who start from them

    def __init__(
        self,
        backbone: Callable[[int], nn.Module],
        loss: Any,
        num_classes: int,
        num_experts: int,
        **settings: Unpack[Settings],
    ):
        super().__init__()
        _check_loss(loss)
        self.loss, self.num_classes, self.num_experts = loss, num_classes, num_experts
        self.num_train, self.seed, self.stage2 = settings["num_train"], settings["seed"], settings["stage2"]
        self.num_folds, self.share, self.router_epochs = settings["folds"], settings["share"], settings["router_epochs"]
        self.new_classifier: Callable[[], nn.Module] = lambda: backbone(num_classes)
        self.backbone, self.folds = self.new_classifier(), self.new_folds()
        self.router = backbone(1 + num_experts)
        if self.num_train:  # else without training data, to read outputs alone
            self.register_buffer("division", torch.tensor(self.own_division()))
        self.classifier_given = self.folds_given = False  # by `init`

    def new_folds(self) -> nn.ModuleList:
        count = self.num_folds if self.stage2 == "cross_fit" else 0
        return nn.ModuleList(self.new_classifier() for _ in range(count))

    def own_division(self) -> int:
        """A number that is the same only where the training rows are divided in the same way."""
        how = {"cross_fit": self.num_folds, "held_out": int(self.share * 2**40), "naive": 1}
        return mix(self.seed, self.num_train, how[self.stage2])

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, K+J]; in training [B, K] of the classifier that the stage trains, or [r, the answers of the classifiers that the
        router learns from], [B, 1+J+F]."""
        if self.training and self.stage in (trained := self.classifiers()):
            scores: Tensor = trained[self.stage](inputs)
            return scores
        scores = self.router(inputs).float()  # [B, 1+J]
        if self.training:
            with torch.no_grad():
                answers = [classifier(inputs).argmax(dim=1) for classifier in self.folds or [self.backbone]]
            return torch.cat([scores, torch.stack(answers, dim=1).float()], dim=1)
        classes = self.backbone(inputs).float()  # [B, K]
        own, experts = scores.tensor_split([1], dim=1)
        return torch.cat([classes - classes.max(dim=1, keepdim=True).values + own, experts], dim=1)

    def classifiers(self) -> dict[str, nn.Module]:
        """By the names of their stages."""
        return {"classifier": self.backbone, **{f"fold_{f}": network for f, network in enumerate(self.folds, 1)}}

    def stages(self) -> list[Stage]:
        rows, routed = self.divide()
        first = [
            Stage(name, list(network.parameters()), classify, rows=rows[name])
            for name, network in self.classifiers().items()
            if not (self.classifier_given if name == "classifier" else self.folds_given)
        ]
        return [*first, Stage("router", list(self.router.parameters()), self.route, self.router_epochs, routed)]

    def divide(self) -> tuple[dict[str, Tensor | None], Tensor | None]:
        """The rows that each classifier is trained on, by stage, and those that the router is trained on; None: all."""
        generator = torch.Generator().manual_seed(mix(self.seed, self.num_train))
        order = torch.randperm(self.num_train, generator=generator)
        self.fold_of = torch.zeros(self.num_train, dtype=torch.long)  # [N]: which classifier answers for the router
        if self.stage2 == "held_out":
            count = round(self.share * self.num_train)
            if not 0 < count < self.num_train:
                raise UserError(
                    f"system.share={self.share:g} of {self.num_train} training samples leaves none for the "
                    f"{'classifier' if count else 'router'}; choose another share."
                )
            return {"classifier": order[count:].sort().values}, order[:count].sort().values
        if self.stage2 == "naive":
            return {"classifier": None}, None
        if self.num_folds > self.num_train:
            raise UserError(
                f"system.folds={self.num_folds} is more than the {self.num_train} training samples; use fewer."
            )
        self.fold_of[order] = torch.arange(self.num_train) % self.num_folds
        outside = {f"fold_{f + 1}": (self.fold_of != f).nonzero().squeeze(1) for f in range(self.num_folds)}
        return {"classifier": None, **outside}, None

    def started_from(self, names: set[str]) -> None:
        """A classifier that was taken over completely is not trained again, nor are the fold networks of the same division."""
        own = self.own_division()
        same = "division" in names and int(self.division) == own
        if self.stage2 == "held_out" and not same:
            raise UserError(
                "init: with system.stage2=held_out the classifier must not have seen what the router learns from; start from a "
                f"run with system.stage2=held_out, system.share={self.share:g}, seed={self.seed} and as many samples, or use cross_fit."
            )
        self.classifier_given = names >= {name for name in self.state_dict() if name.startswith("backbone.")}
        of_folds = {name for name in self.state_dict() if name.startswith("folds.")}
        self.folds_given = same and self.classifier_given and names >= of_folds
        if names & of_folds and not self.folds_given:
            notify(
                "init: the folds of that run are others (seed, samples, classes or folds), so their networks are trained again."
            )
            self.folds = self.new_folds()  # nothing of a network that has seen the rows of this fold
        self.division.fill_(own)

    def forget_training(self) -> None:
        """The fold networks have answered for the router."""
        self.folds = nn.ModuleList()

    def route(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean loss of the router's scores, in float32 also under autocast."""
        scores, answers = outputs.float().tensor_split([1 + self.num_experts], dim=1)  # [B, 1+J], [B, F]
        self.fold_of = self.fold_of.to(batch.samples.device)
        own = answers.gather(1, self.fold_of[batch.samples][:, None]).squeeze(1)  # [B]
        return self.losses(scores, own == batch.labels, batch, reduction="mean")

    def losses(self, scores: Tensor, right: Tensor, batch: Batch, reduction: Reduction = "none") -> Tensor:
        """The loss of each sample, [B], or their mean, for scores [B, 1+J] where the classifier is `right` [B]."""
        scores = self.loss.answered(scores, batch.answers)
        among = torch.cat([right[:, None], batch.answers == batch.labels[:, None]], dim=1)  # [B, 1+J]
        own, weights = self.loss.formulation(scores.detach(), among).tensor_split([1], dim=1)  # [B, 1], [B, J]
        losses: Tensor = self.loss.taught(scores, own, weights, batch.answers, reduction)
        return losses

    @property
    def vouches_for(self) -> Literal["all", "none"]:  # type: ignore[override]
        """One sigmoid per agent is its accuracy, if every agent is taught; a softmax gives ratios alone."""
        return "all" if isinstance(self.loss.base, OvA) and self.loss.formulation is vanilla else "none"

    def beliefs(self, outputs: Tensor) -> Tensor:
        """OvA: the predicted class has the sigmoid of r_0, the others share the rest in the classifier's proportions, each below
        it; experts have their sigmoids. Otherwise the classifier's own softmax p, and max p exp(r_j - r_0) for the experts.
        """
        classes, experts = outputs.double().tensor_split([self.num_classes], dim=1)
        agent, predicted = classes.max(dim=1, keepdim=True)  # r_0 and yhat, [B, 1]
        if isinstance(self.loss.base, OvA):
            right = agent.sigmoid()
            others = classes.scatter(1, predicted, -torch.inf).softmax(dim=1)  # [B, K]
            below = right * (1 - 2**-53)  # the next lower number, so that no class is level with the predicted one
            among = ((1 - right) * others).minimum(below).scatter(1, predicted, right)
            return torch.cat([among, experts.sigmoid()], dim=1)
        q = getattr(self.loss.base, "q", 0.0)
        power = 1 - q if q < 1 else 1  # softmax(r) ~ accuracy^(1/power); q = 1: order alone
        return ce.beliefs(torch.cat([classes, agent + power * (experts - agent)], dim=1), self.num_classes).clamp(max=1)


def _check_loss(loss: Any) -> None:
    if type(loss) is DeferralLoss and isinstance(loss.base, CE | OvA | GCE):
        return
    what = f"base={getattr(loss.base, 'name', loss.base)}" if type(loss) is DeferralLoss else type(loss).__name__
    raise UserError(
        f"loss ({what}) cannot teach the router of system=two_stage; choose a formulation with base ce, ova or gce, such as loss=ce, "
        "balanced_ova or picce_ce."
    )
