/* The class with its attributes, and the module. */
#include "quiet.h"

#define VERSION 1

PyTypeObject *block_type;
PyObject *s_in_training_mode, *s_has_stepped, *s_read, *s_shape, *s_dtype, *s_is_floating_point, *s_input_ids;
PyObject *s_optimizer, *s_grad_scaler;

/* The attributes by their types, for all that has to name each of them. */
#define OBJECTS(OBJECT)                                                                                                \
    OBJECT(alone) OBJECT(name) OBJECT(tensor_class) OBJECT(is_grad_enabled) OBJECT(dtype) OBJECT(stepped_class)        \
    OBJECT(append) OBJECT(file) OBJECT(make_lines) OBJECT(counters) OBJECT(advance_probes) OBJECT(begin_forward)       \
    OBJECT(fail) OBJECT(find_input) OBJECT(find_loaded) OBJECT(is_traced_alone) OBJECT(read_counters)                  \
    OBJECT(reevaluates) OBJECT(take_news) OBJECT(take_waits) OBJECT(guarded)
#define NUMBERS(NUMBER)                                                                                                \
    NUMBER(steps) NUMBER(last) NUMBER(hook_ns) NUMBER(started_ns) NUMBER(sign_ns) NUMBER(batch_ns)                     \
    NUMBER(batch_wait_ns) NUMBER(long_ns) NUMBER(usual_ns) NUMBER(micro_batches) NUMBER(forward_samples)               \
    NUMBER(forward_tokens) NUMBER(optimizer_steps) NUMBER(loaded_samples) NUMBER(loaded_tokens) NUMBER(data_wait_ns)
#define FLAGS(FLAG)                                                                                                    \
    FLAG(dead) FLAG(is_on) FLAG(has_loader) FLAG(has_cleared) FLAG(has_forward) FLAG(has_news) FLAG(has_waits)         \
    FLAG(is_probing) FLAG(knows_precision)

static int quiet_traverse(PyObject *object, visitproc visit, void *arg)
{
    Quiet *quiet = (Quiet *)object;
    Py_VISIT(Py_TYPE(object));
#define VISIT(field) Py_VISIT(quiet->field);
    OBJECTS(VISIT)
#undef VISIT
    return 0;
}

static int quiet_clear(PyObject *object)
{
    Quiet *quiet = (Quiet *)object;
    quiet->is_on = 0;
#define CLEAR(field) Py_CLEAR(quiet->field);
    OBJECTS(CLEAR)
#undef CLEAR
    return 0;
}

static void quiet_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    quiet_clear(object);
    Py_XDECREF((PyObject *)((Quiet *)object)->block);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(object);
    Py_DECREF(type);
}

static PyMemberDef quiet_members[] = {
#define OBJECT(field) {#field, T_OBJECT, offsetof(Quiet, field), 0, NULL},
#define NUMBER(field) {#field, T_LONGLONG, offsetof(Quiet, field), 0, NULL},
#define FLAG(field) {#field, T_BOOL, offsetof(Quiet, field), 0, NULL},
    OBJECTS(OBJECT) NUMBERS(NUMBER) FLAGS(FLAG)
#undef OBJECT
#undef NUMBER
#undef FLAG
    {"thread", T_ULONG, offsetof(Quiet, thread), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

#define HOOK(name) {#name, (PyCFunction)(void (*)(void))name, METH_FASTCALL | METH_KEYWORDS, NULL}
static PyMethodDef quiet_methods[] = {
    HOOK(on_batch_loaded), HOOK(on_forward), HOOK(on_gradients_cleared), HOOK(on_model_call), HOOK(on_optimizer_step),
    HOOK(on_scaler_update), HOOK(on_step_begin), HOOK(on_step_end),
    {"learn_length", (PyCFunction)(void (*)(void))learn_length, METH_O, NULL},
    {"clear", (PyCFunction)(void (*)(void))clear, METH_NOARGS, NULL},
    {"close_block", (PyCFunction)(void (*)(void))close_block, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot quiet_slots[] = {
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, quiet_dealloc},
    {Py_tp_traverse, quiet_traverse},
    {Py_tp_clear, quiet_clear},
    {Py_tp_members, quiet_members},
    {Py_tp_methods, quiet_methods},
    {0, NULL},
};
static PyType_Spec quiet_spec = {
    "perfscope.hooks.native.quiet.QuietSteps", sizeof(Quiet), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, quiet_slots};

static int load_names(void)
{
    return (s_in_training_mode = PyUnicode_InternFromString("in_training_mode")) != NULL &&
           (s_has_stepped = PyUnicode_InternFromString("has_stepped")) != NULL &&
           (s_read = PyUnicode_InternFromString("read")) != NULL &&
           (s_shape = PyUnicode_InternFromString("shape")) != NULL &&
           (s_dtype = PyUnicode_InternFromString("dtype")) != NULL &&
           (s_is_floating_point = PyUnicode_InternFromString("is_floating_point")) != NULL &&
           (s_input_ids = PyUnicode_InternFromString("input_ids")) != NULL &&
           (s_optimizer = PyUnicode_InternFromString("optimizer")) != NULL &&
           (s_grad_scaler = PyUnicode_InternFromString("grad_scaler")) != NULL;
}

static struct PyModuleDef module_definition = {PyModuleDef_HEAD_INIT, "quiet", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_quiet(void)
{
    PyObject *module = PyModule_Create(&module_definition);
    PyObject *quiet_type = PyType_FromSpec(&quiet_spec);
    block_type = make_block_type();
    if (module == NULL || quiet_type == NULL || block_type == NULL || !load_names() ||
        PyModule_AddObjectRef(module, "QuietSteps", quiet_type) < 0 ||
        PyModule_AddIntConstant(module, "VERSION", VERSION) < 0) {
        Py_XDECREF(quiet_type);
        Py_XDECREF(module);
        return NULL;
    }
    Py_DECREF(quiet_type);
    return module;
}
