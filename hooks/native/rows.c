/* The rows of quiet steps, and the lines that become of them. */
#include "quiet.h"

#define LONGEST_LINE 1024
#define LARGEST_SCALE 1e18

PyObject *or_none(PyObject *value)
{
    return value == NULL ? Py_None : value;
}

static PyObject *to_tuple(const Row *row, PyObject *counters)
{
    PyObject *sign = row->sign_ns ? PyLong_FromLongLong(row->sign_ns) : Py_NewRef(Py_None);
    PyObject *wait = row->has_loader ? PyLong_FromLongLong(row->data_wait_ns) : Py_NewRef(Py_None);
    if (sign == NULL || wait == NULL) {
        Py_XDECREF(sign);
        Py_XDECREF(wait);
        return NULL;
    }
    return Py_BuildValue(
        "(LLO(LNL)(LLL)(LLN)OO(OO)O)", row->step, row->end_ns, row->source, row->began_ns, sign, row->hook_ns,
        row->micro_batches, row->forward_samples, row->forward_tokens, row->loaded_samples, row->loaded_tokens, wait,
        or_none(row->stated), or_none(row->peaks), or_none(row->used), or_none(row->waits), counters);
}

/* The rows of a block as tuples of the arguments of make_line; no row is added to it any more. */
static PyObject *block_take(PyObject *object, PyObject *counters)
{
    Block *block = (Block *)object;
    block->is_closed = 1;
    PyObject *rows = PyList_New(block->count);
    for (int index = 0; rows != NULL && index < block->count; index++) {
        PyObject *row = to_tuple(&block->rows[index], counters);
        if (row == NULL || PyList_SetItem(rows, index, row) < 0) {
            Py_CLEAR(rows);
        }
    }
    return rows;
}

/* What a framework states of a step; 0 for what it does not state. */
typedef struct {
    long long micro_batches, samples, tokens, global_samples, iteration;
    char is_skipped, has_global_samples, has_iteration;
    char loss_scale[40];
} Stated;

/* A whole number that is stated, and whether it is; -1 where it is of a type that Python has to look at. */
static int read_whole(PyObject *stated, const char *name, long long *value)
{
    PyObject *number = PyDict_GetItemString(stated, name);
    int overflow = 0;
    if (number == NULL || number == Py_None) {
        return 0;
    }
    if (!PyLong_CheckExact(number)) {
        return -1;
    }
    *value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return overflow ? -1 : 1;
}

/* The loss scale as JSON; -1 where Python has to look at it, or with an error set. */
static int read_loss_scale(PyObject *stated, char *text, size_t size)
{
    PyObject *scale = PyDict_GetItemString(stated, "loss_scale");
    if (scale == NULL || scale == Py_None) {
        return 0;
    }
    double value = PyFloat_CheckExact(scale) ? PyFloat_AsDouble(scale) : -1;
    if (!(value >= 0 && value <= LARGEST_SCALE)) {
        return -1;
    }
    PyObject *shown = PyObject_Repr(scale), *bytes = shown == NULL ? NULL : PyUnicode_AsUTF8String(shown);
    int length = bytes == NULL ? -1 : snprintf(text, size, ",\"loss_scale\":%s", PyBytes_AsString(bytes));
    Py_XDECREF(shown);
    Py_XDECREF(bytes);
    return length;
}

/* Read what is stated in the types that frameworks state it in; -1 for others, or with an error set. */
static int read_stated_values(PyObject *stated, Stated *values)
{
    memset(values, 0, sizeof *values);
    if (stated == NULL) {
        return 0;
    }
    PyObject *skipped = PyDict_CheckExact(stated) ? PyDict_GetItemString(stated, "skipped") : stated;
    if (skipped != NULL && skipped != Py_None && skipped != Py_False && skipped != Py_True) {
        return -1;
    }
    values->is_skipped = skipped == Py_True;
    int has_samples = read_whole(stated, "global_samples", &values->global_samples);
    int has_iteration = read_whole(stated, "iteration", &values->iteration);
    values->has_global_samples = has_samples > 0;
    values->has_iteration = has_iteration > 0;
    return has_samples < 0 || has_iteration < 0 || read_whole(stated, "micro_batches", &values->micro_batches) < 0 ||
                   read_whole(stated, "samples", &values->samples) < 0 ||
                   read_whole(stated, "tokens", &values->tokens) < 0 ||
                   read_loss_scale(stated, values->loss_scale, sizeof values->loss_scale) < 0
               ? -1
               : 0;
}

/* Whether a row holds nothing but numbers, and what is stated in it. */
static int is_plain(const Row *row, Stated *values)
{
    return row->peaks == NULL && row->waits == NULL && (row->used == NULL || row->used == Py_None) &&
           read_stated_values(row->stated, values) == 0;
}

/* Add a number to a line, which has room for all of its numbers; 0 for none, where it is not needed. */
static int append(char *text, int length, const char *format, long long value, int is_needed)
{
    return is_needed ? length + snprintf(text + length, (size_t)(LONGEST_LINE - length), format, value) : length;
}

/* The line of a row, as make_line makes it; NULL with an error set. */
static PyObject *to_line(const Row *row, const Stated *stated)
{
    char text[LONGEST_LINE];
    long long samples = row->forward_samples, tokens = row->forward_tokens, sign_ns = row->sign_ns;
    PyObject *source = PyUnicode_AsUTF8String(row->source);
    const char *name = source == NULL ? NULL : PyBytes_AsString(source);
    if (name == NULL) {
        Py_XDECREF(source);
        return NULL;
    }
    if (!samples) { /* what went into the model is counted, or else what data loaders handed out */
        samples = row->loaded_samples;
        tokens = row->loaded_tokens;
    }
    long long micro_batches = stated->micro_batches ? stated->micro_batches : row->micro_batches;
    samples = stated->samples ? stated->samples : samples;
    tokens = stated->tokens ? stated->tokens : tokens;
    sign_ns = sign_ns < row->end_ns ? sign_ns : row->end_ns; /* the end may be the first sign: it is read behind it */
    int length = snprintf(text, sizeof text, "{\"step\":%lld,\"end_ns\":%lld,\"source\":\"%.99s\",\"wall_ns\":%lld%s",
                          row->step, row->end_ns, name, row->end_ns - row->began_ns,
                          stated->is_skipped ? ",\"skipped\":true" : "");
    Py_DECREF(source);
    length = append(text, length, ",\"micro_batches\":%lld", micro_batches, micro_batches != 0);
    length = append(text, length, ",\"samples\":%lld", samples, samples != 0);
    length = append(text, length, ",\"tokens\":%lld", tokens, tokens != 0);
    length = append(text, length, ",\"global_samples\":%lld", stated->global_samples, stated->has_global_samples);
    length = append(text, length, ",\"data_wait_ns\":%lld", row->data_wait_ns, row->has_loader);
    length = append(text, length, ",\"gap_ns\":%lld", sign_ns - row->began_ns, row->sign_ns > row->began_ns);
    length = append(text, length, ",\"hook_ns\":%lld", row->hook_ns, 1);
    length += snprintf(text + length, (size_t)(LONGEST_LINE - length), "%s", stated->loss_scale);
    length = append(text, length, ",\"iteration\":%lld", stated->iteration, stated->has_iteration);
    length += snprintf(text + length, (size_t)(LONGEST_LINE - length), "}\n");
    return PyBytes_FromStringAndSize(text, length);
}

/* Tell the counters of so many steps in which they were not read. */
static int skip(PyObject *counters, long steps)
{
    PyObject *result = steps ? PyObject_CallMethod(counters, "skip", "l", steps) : Py_NewRef(Py_None);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* The lines of a block's rows; those in which more than numbers was seen are made by make_line. */
static PyObject *block_lines(PyObject *object, PyObject *args)
{
    Block *block = (Block *)object;
    PyObject *make_line, *counters, *join = NULL, *joined = NULL;
    if (!PyArg_ParseTuple(args, "OO", &make_line, &counters)) {
        return NULL;
    }
    block->is_closed = 1;
    PyObject *lines = PyList_New(block->count);
    long unread = 0;
    int index = 0;
    for (; lines != NULL && index < block->count; index++) {
        const Row *row = &block->rows[index];
        PyObject *line = NULL;
        Stated stated;
        if (is_plain(row, &stated)) {
            unread += 1;
            line = to_line(row, &stated);
        } else if (PyErr_Occurred() == NULL && skip(counters, unread) == 0) {
            unread = 0;
            PyObject *values = to_tuple(row, counters);
            line = values == NULL ? NULL : PyObject_Call(make_line, values, NULL);
            Py_XDECREF(values);
        }
        if (line == NULL || PyList_SetItem(lines, index, line) < 0) {
            Py_CLEAR(lines);
        }
    }
    if (lines != NULL && skip(counters, unread) == 0 && (join = PyBytes_FromStringAndSize(NULL, 0)) != NULL) {
        joined = PyObject_CallMethod(join, "join", "O", lines);
    }
    Py_XDECREF(join);
    Py_XDECREF(lines);
    return joined;
}

static void block_dealloc(PyObject *object)
{
    Block *block = (Block *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (int index = 0; index < block->count; index++) {
        Row *row = &block->rows[index];
        Py_XDECREF(row->source);
        Py_XDECREF(row->stated);
        Py_XDECREF(row->peaks);
        Py_XDECREF(row->used);
        Py_XDECREF(row->waits);
    }
    PyObject_Free(object);
    Py_DECREF(type);
}

/* A place for one more row, in a block that waits in the queue; NULL with an error set where there is none. */
Row *next_row(Quiet *quiet)
{
    Block *block = quiet->block;
    if (block == NULL || block->is_closed || block->count == ROWS_OF_BLOCK) {
        block = PyObject_New(Block, block_type);
        if (block == NULL) {
            return NULL;
        }
        block->count = 0;
        block->is_closed = 0;
        PyObject *row = Py_BuildValue("(OO(OO))", or_none(quiet->file), or_none(quiet->make_lines), block,
                                      or_none(quiet->counters));
        PyObject *result = row == NULL ? NULL : PyObject_CallFunctionObjArgs(quiet->append, row, NULL);
        Py_XDECREF(row);
        if (result == NULL) {
            Py_DECREF(block);
            return NULL;
        }
        Py_DECREF(result);
        Block *old = quiet->block;
        quiet->block = block;
        Py_XDECREF((PyObject *)old);
    }
    return &block->rows[block->count];
}

static PyMethodDef block_methods[] = {
    {"lines", block_lines, METH_VARARGS, NULL},
    {"take", block_take, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
static PyType_Slot block_slots[] = {{Py_tp_dealloc, block_dealloc}, {Py_tp_methods, block_methods}, {0, NULL}};
static PyType_Spec block_spec = {
    "perfscope.hooks.native.quiet.Block", sizeof(Block), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    block_slots};

PyTypeObject *make_block_type(void)
{
    return (PyTypeObject *)PyType_FromSpec(&block_spec);
}
