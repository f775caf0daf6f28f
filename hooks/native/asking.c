/* What hooks ask of their arguments and of Python, and what they leave to it. */
#include "quiet.h"

#define IDS 2 /* token ids have a dimension of samples and one of positions */

long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000LL + now.tv_nsec;
}

int is_here(const Quiet *quiet)
{
    return PyThread_get_thread_ident() == quiet->thread;
}

int is_quiet(const Quiet *quiet)
{
    return quiet->is_on && !quiet->dead;
}

int is_same_text(PyObject *first, PyObject *second)
{
    return first == second || (first != NULL && second != NULL && PyUnicode_Check(first) && PyUnicode_Check(second) &&
                               PyUnicode_Compare(first, second) == 0);
}

/* Whether a function of Python's returns something true; -1 with an error set. */
int ask(PyObject *function)
{
    PyObject *result = PyObject_CallFunctionObjArgs(function, NULL); /* which says so where there is none */
    if (result == NULL) {
        return -1;
    }
    int answer = PyObject_IsTrue(result);
    Py_DECREF(result);
    return answer;
}

/* Whether this is the object whose boundaries are steps of their own; 2 where it is gone, -1 with an error set. */
int is_alone(const Quiet *quiet, PyObject *emitter)
{
    PyObject *alone = quiet->alone == NULL ? NULL : PyObject_CallNoArgs(quiet->alone);
    if (alone == NULL) {
        return quiet->alone == NULL ? 2 : -1;
    }
    int answer = alone == Py_None ? 2 : alone == emitter;
    Py_DECREF(alone);
    return answer;
}

int to_ns(PyObject *number, long long *value)
{
    *value = PyLong_AsLongLong(number);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static int size_at(PyObject *shape, Py_ssize_t index, long long *size)
{
    PyObject *item = PyTuple_GetItem(shape, index);
    return item == NULL ? -1 : to_ns(item, size);
}

/* The samples of a tensor, and its tokens where it is integers of two dimensions; -1 with an error set. */
int count_work(Quiet *quiet, PyObject *tensor, long long *samples, long long *tokens)
{
    *samples = *tokens = 0;
    PyObject *shape = PyObject_GetAttr(tensor, s_shape);
    if (shape == NULL) {
        return -1;
    }
    long long positions = 0;
    Py_ssize_t dimensions = PyTuple_Size(shape);
    int failed = dimensions < 0 || (dimensions > 0 && size_at(shape, 0, samples) < 0) ||
                 (dimensions == IDS && size_at(shape, 1, &positions) < 0);
    Py_DECREF(shape);
    if (failed || dimensions != IDS) {
        return failed ? -1 : 0;
    }
    PyObject *dtype = PyObject_GetAttr(tensor, s_dtype);
    if (dtype == NULL) {
        return -1;
    }
    if (dtype != quiet->dtype) {
        PyObject *is_floating = PyObject_CallMethodObjArgs(tensor, s_is_floating_point, NULL);
        int answer = is_floating == NULL ? -1 : PyObject_IsTrue(is_floating);
        Py_XDECREF(is_floating);
        if (answer < 0) {
            Py_DECREF(dtype);
            return -1;
        }
        PyObject *old = quiet->dtype;
        quiet->dtype = Py_NewRef(dtype);
        quiet->are_ids = !answer;
        Py_XDECREF(old);
    }
    Py_DECREF(dtype);
    *tokens = quiet->are_ids ? *samples * positions : 0;
    return 0;
}

int is_tensor(const Quiet *quiet, PyObject *value)
{
    return value != NULL && (PyObject *)Py_TYPE(value) == quiet->tensor_class;
}

/* The tensor that stands where nearly all trainings have it, borrowed; NULL for any other place. */
PyObject *plain_tensor(const Quiet *quiet, PyObject *value)
{
    if (value == NULL || is_tensor(quiet, value)) {
        return value;
    }
    PyObject *first = NULL;
    if (PyList_CheckExact(value)) {
        first = PyList_Size(value) > 0 ? PyList_GetItem(value, 0) : NULL;
    } else if (PyTuple_CheckExact(value)) {
        first = PyTuple_Size(value) > 0 ? PyTuple_GetItem(value, 0) : NULL;
    } else if (PyDict_CheckExact(value)) {
        first = PyDict_GetItemWithError(value, s_input_ids);
        PyErr_Clear();
    }
    return is_tensor(quiet, first) ? first : NULL;
}

/* What enters a model: its token ids, else its first argument, borrowed; NULL where Python has to look for it. */
PyObject *plain_input(const Quiet *quiet, PyObject *args, PyObject *kwargs)
{
    if (!PyTuple_CheckExact(args) || !PyDict_CheckExact(kwargs)) {
        return NULL;
    }
    PyObject *ids = PyDict_Size(kwargs) ? PyDict_GetItemWithError(kwargs, s_input_ids) : NULL;
    PyErr_Clear();
    PyObject *first = ids == NULL && PyTuple_Size(args) > 0 ? PyTuple_GetItem(args, 0) : ids;
    return is_tensor(quiet, first) ? first : NULL;
}

/* ---- what is left to Python ---- */

/* Call the guarded method of a name with the arguments of a quick one. */
PyObject *leave_to(Quiet *quiet, const char *name, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *method = quiet->guarded == NULL ? NULL : PyDict_GetItemString(quiet->guarded, name);
    if (method == NULL) {
        PyErr_SetString(PyExc_AttributeError, name);
        return NULL;
    }
    Py_INCREF(method);
    PyObject *positional = PyTuple_New(count), *named = NULL, *result = NULL;
    for (Py_ssize_t index = 0; positional != NULL && index < count; index++) {
        PyTuple_SetItem(positional, index, Py_NewRef(args[index]));
    }
    Py_ssize_t further = names == NULL ? 0 : PyTuple_Size(names);
    if (positional != NULL && further > 0) {
        named = PyDict_New();
        for (Py_ssize_t index = 0; named != NULL && index < further; index++) {
            if (PyDict_SetItem(named, PyTuple_GetItem(names, index), args[count + index]) < 0) {
                Py_CLEAR(named);
            }
        }
    }
    if (positional != NULL && (further == 0 || named != NULL)) {
        result = PyObject_Call(method, positional, named);
    }
    Py_XDECREF(positional);
    Py_XDECREF(named);
    Py_DECREF(method);
    return result;
}

/* The capture ends with the error that is set, and training goes on; what is no Exception passes through. */
PyObject *give_up(Quiet *quiet)
{
    PyObject *type, *value, *trace;
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return NULL;
    }
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL) {
        PyException_SetTraceback(value, trace);
    }
    PyObject *result = quiet->fail == NULL ? NULL : PyObject_CallFunctionObjArgs(quiet->fail, value, NULL);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return result;
}

int parse_now(PyObject *const *args, Py_ssize_t count, Py_ssize_t index, long long *began_ns)
{
    if (count <= index || args[index] == Py_None) {
        *began_ns = now_ns();
        return 0;
    }
    return to_ns(args[index], began_ns);
}

PyObject *named_argument(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject *name)
{
    Py_ssize_t further = names == NULL ? 0 : PyTuple_Size(names);
    for (Py_ssize_t index = 0; index < further; index++) {
        if (is_same_text(PyTuple_GetItem(names, index), name)) {
            return args[count + index];
        }
    }
    return NULL;
}
