#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>

/* Which sources this was built from, so that a library from before a change of them is not used. */
uint32_t source_checksum(void) { return SOURCE_CHECKSUM; }

/* An importable module without contents: ctypes calls the functions above, and needs no more than its file. */
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "compiled", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModule_Create(&module); }
