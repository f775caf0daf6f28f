/* The hooks of a quiet step in C: they read the clock, count, and append a row of numbers.
 *
 * QuietSteps is the same class as the one in quick_hooks.py, attribute by attribute and method by method, and that is
 * where both are explained; a test trains with both and compares their records. In a step that waited for a device
 * nothing of Python's code for a hook is in the processor's caches. A method here touches its own lines of code and the
 * lines of one struct; everything else is left to the guarded method whose place it takes.
 *
 * Nothing here lets go of the interpreter's lock but the calls of Python's functions. What a hook reads through such
 * calls it reads first, then asks whether the step is still quiet, and only then counts. The file keeps to Python's stable
 * interface, so that one build serves Python 3.11 and all later ones.
 */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdio.h>
#include <time.h>

#define VERSION 1
#define ROWS_OF_BLOCK 64
#define LONGEST_LINE 1024
#define EACH_READ_MASK 15
#define LONG_SHIFT 3
#define LIMIT_SHIFT 2
#define WEIGHT_SHIFT 4
#define IDS 2 /* token ids have a dimension of samples and one of positions */

typedef struct {
    long long step, end_ns, began_ns, sign_ns, hook_ns;
    long long micro_batches, forward_samples, forward_tokens, loaded_samples, loaded_tokens, data_wait_ns;
    PyObject *source, *stated, *peaks, *used, *waits; /* owned; NULL for what there is not */
    char has_loader;
} Row;

typedef struct {
    PyObject_HEAD
    int count;
    char is_closed;
    Row rows[ROWS_OF_BLOCK];
} Block;

typedef struct {
    PyObject_HEAD
    long long steps, last, hook_ns, started_ns, sign_ns, batch_ns, batch_wait_ns, long_ns, usual_ns;
    long long micro_batches, forward_samples, forward_tokens, optimizer_steps;
    long long loaded_samples, loaded_tokens, data_wait_ns;
    unsigned long thread;
    char dead, is_on, has_loader, has_cleared, has_forward, has_news, has_waits, is_probing, knows_precision, are_ids;
    PyObject *alone, *name;
    PyObject *tensor_class, *is_grad_enabled, *dtype, *stepped_class;
    PyObject *append, *file, *make_lines, *counters;
    PyObject *advance_probes, *begin_forward, *fail, *find_input, *find_loaded, *is_traced_alone;
    PyObject *read_counters, *reevaluates, *take_news, *take_waits;
    PyObject *guarded; /* the guarded methods by their names */
    Block *block;
} Quiet;

static PyTypeObject *block_type;
static PyObject *s_in_training_mode, *s_has_stepped, *s_read, *s_shape, *s_dtype, *s_is_floating_point, *s_input_ids;
static PyObject *s_optimizer, *s_grad_scaler;

static long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* ---- rows ---- */

static PyObject *or_none(PyObject *value)
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

static int is_plain(const Row *row)
{
    return row->stated == NULL && row->peaks == NULL && row->waits == NULL &&
           (row->used == NULL || row->used == Py_None) && row->source != NULL;
}

/* Add a number to a line, which has room for all of its numbers. */
static int append(char *text, int length, const char *format, long long value)
{
    return length + snprintf(text + length, (size_t)(LONGEST_LINE - length), format, value);
}

/* The line of a row in which nothing but numbers was seen, as make_line makes it; NULL with an error set. */
static PyObject *to_line(const Row *row)
{
    char text[LONGEST_LINE];
    long long samples = row->forward_samples, tokens = row->forward_tokens;
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
    int length = snprintf(text, sizeof text, "{\"step\":%lld,\"end_ns\":%lld,\"source\":\"%.99s\",\"wall_ns\":%lld",
                          row->step, row->end_ns, name, row->end_ns - row->began_ns);
    Py_DECREF(source);
    if (row->micro_batches) {
        length = append(text, length, ",\"micro_batches\":%lld", row->micro_batches);
    }
    if (samples) {
        length = append(text, length, ",\"samples\":%lld", samples);
    }
    if (tokens) {
        length = append(text, length, ",\"tokens\":%lld", tokens);
    }
    if (row->has_loader) {
        length = append(text, length, ",\"data_wait_ns\":%lld", row->data_wait_ns);
    }
    if (row->sign_ns > row->began_ns) { /* the end itself may be the first sign: it is read behind the end */
        long long sign_ns = row->sign_ns < row->end_ns ? row->sign_ns : row->end_ns;
        length = append(text, length, ",\"gap_ns\":%lld", sign_ns - row->began_ns);
    }
    length = append(text, length, ",\"hook_ns\":%lld}\n", row->hook_ns);
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
        if (is_plain(row)) {
            unread += 1;
            line = to_line(row);
        } else if (skip(counters, unread) == 0) {
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
static Row *next_row(Quiet *quiet)
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

/* ---- what hooks ask ---- */

static int is_here(const Quiet *quiet)
{
    return PyThread_get_thread_ident() == quiet->thread;
}

static int is_quiet(const Quiet *quiet)
{
    return quiet->is_on && !quiet->dead;
}

static int is_same_text(PyObject *first, PyObject *second)
{
    return first == second || (first != NULL && second != NULL && PyUnicode_Check(first) && PyUnicode_Check(second) &&
                               PyUnicode_Compare(first, second) == 0);
}

/* Whether a function of Python's returns something true; -1 with an error set. */
static int ask(PyObject *function)
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
static int is_alone(const Quiet *quiet, PyObject *emitter)
{
    PyObject *alone = quiet->alone == NULL ? NULL : PyObject_CallNoArgs(quiet->alone);
    if (alone == NULL) {
        return quiet->alone == NULL ? 2 : -1;
    }
    int answer = alone == Py_None ? 2 : alone == emitter;
    Py_DECREF(alone);
    return answer;
}

static int to_ns(PyObject *number, long long *value)
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
static int count_work(Quiet *quiet, PyObject *tensor, long long *samples, long long *tokens)
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

static int is_tensor(const Quiet *quiet, PyObject *value)
{
    return value != NULL && (PyObject *)Py_TYPE(value) == quiet->tensor_class;
}

/* The tensor that stands where nearly all trainings have it, borrowed; NULL for any other place. */
static PyObject *plain_tensor(const Quiet *quiet, PyObject *value)
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
static PyObject *plain_input(const Quiet *quiet, PyObject *args, PyObject *kwargs)
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
static PyObject *leave_to(Quiet *quiet, const char *name, PyObject *const *args, Py_ssize_t count, PyObject *names)
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
static PyObject *give_up(Quiet *quiet)
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

static int parse_now(PyObject *const *args, Py_ssize_t count, Py_ssize_t index, long long *began_ns)
{
    if (count <= index || args[index] == Py_None) {
        *began_ns = now_ns();
        return 0;
    }
    return to_ns(args[index], began_ns);
}

static PyObject *named_argument(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject *name)
{
    Py_ssize_t further = names == NULL ? 0 : PyTuple_Size(names);
    for (Py_ssize_t index = 0; index < further; index++) {
        if (is_same_text(PyTuple_GetItem(names, index), name)) {
            return args[count + index];
        }
    }
    return NULL;
}

/* ---- hooks ---- */

static PyObject *on_batch_loaded(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    long long began_ns, wait_ns, samples = 0, tokens = 0;
    if (!is_quiet(quiet) || names != NULL || count < 2 || count > 3) {
        return leave_to(quiet, "on_batch_loaded", args, count, names);
    }
    if (parse_now(args, count, 2, &began_ns) < 0 || to_ns(args[1], &wait_ns) < 0) {
        return give_up(quiet);
    }
    int trains = is_here(quiet);
    int has_gradients = trains ? ask(quiet->is_grad_enabled) : 1;
    if (has_gradients < 0) {
        return give_up(quiet);
    }
    if (has_gradients) {
        PyObject *first = Py_XNewRef(plain_tensor(quiet, args[0]));
        if (first == NULL) {
            first = PyObject_CallFunctionObjArgs(quiet->find_loaded, args[0], NULL);
        }
        int failed = first == NULL || (first != Py_None && count_work(quiet, first, &samples, &tokens) < 0);
        Py_XDECREF(first);
        if (failed) {
            return give_up(quiet);
        }
    }
    if (!has_gradients || !is_quiet(quiet)) {
        return leave_to(quiet, "on_batch_loaded", args, count, names);
    }
    if (trains) {
        quiet->batch_ns = quiet->batch_ns ? quiet->batch_ns : began_ns - wait_ns;
        quiet->batch_wait_ns += wait_ns;
        quiet->data_wait_ns += wait_ns;
        quiet->has_loader = 1;
    }
    quiet->loaded_samples += samples;
    quiet->loaded_tokens += tokens;
    quiet->hook_ns += now_ns() - began_ns;
    Py_RETURN_NONE;
}

static void begin_step(Quiet *quiet, long long began_ns)
{
    if (!quiet->sign_ns) {
        quiet->sign_ns = quiet->batch_ns ? quiet->batch_ns : began_ns;
    }
    quiet->batch_ns = quiet->batch_wait_ns = 0;
}

static PyObject *forward(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names, const char *guarded)
{
    long long began_ns = now_ns(), samples = 0, tokens = 0;
    PyObject *mode = named_argument(args, count, names, s_in_training_mode);
    if (!is_quiet(quiet) || count != 2 || (mode != NULL && mode != Py_True) || !is_here(quiet)) {
        return leave_to(quiet, guarded, args, count, names);
    }
    int has_gradients = ask(quiet->is_grad_enabled);
    if (has_gradients < 0) {
        return give_up(quiet);
    }
    if (has_gradients) {
        PyObject *first = Py_XNewRef(plain_input(quiet, args[0], args[1]));
        if (first == NULL) {
            first = PyObject_CallFunctionObjArgs(quiet->find_input, args[0], args[1], NULL);
            int is_traced = first == NULL ? -1 : is_tensor(quiet, first) ? 0 : ask(quiet->is_traced_alone);
            if (is_traced) {
                Py_XDECREF(first);
                if (is_traced < 0) {
                    return give_up(quiet);
                }
                Py_RETURN_NONE;
            }
        }
        int failed = first != Py_None && count_work(quiet, first, &samples, &tokens) < 0;
        Py_DECREF(first);
        if (failed) {
            return give_up(quiet);
        }
    }
    if (!has_gradients || !is_quiet(quiet)) {
        return leave_to(quiet, guarded, args, count, names);
    }
    begin_step(quiet, began_ns);
    quiet->has_forward = 1;
    quiet->micro_batches += 1;
    quiet->forward_samples += samples;
    quiet->forward_tokens += tokens;
    PyObject *on_end = NULL;
    if (quiet->is_probing) {
        on_end = PyObject_CallNoArgs(quiet->begin_forward);
        if (on_end == NULL) {
            return give_up(quiet);
        }
    }
    quiet->hook_ns += now_ns() - began_ns;
    return on_end == NULL ? Py_NewRef(Py_None) : on_end;
}

static PyObject *on_forward(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    return forward(quiet, args, count, names, "on_forward");
}

static PyObject *on_model_call(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (!quiet->knows_precision) {
        return leave_to(quiet, "on_model_call", args, count, names);
    }
    return forward(quiet, args, count, names, "on_model_call");
}

static PyObject *on_gradients_cleared(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    long long began_ns;
    if (!is_quiet(quiet) || names != NULL || count < 1 || count > 2) {
        return leave_to(quiet, "on_gradients_cleared", args, count, names);
    }
    int alone = parse_now(args, count, 1, &began_ns) < 0 ? -1 : is_alone(quiet, args[0]);
    if (alone < 0) {
        return give_up(quiet);
    }
    quiet->has_cleared |= alone != 1;
    quiet->hook_ns += now_ns() - began_ns;
    Py_RETURN_NONE;
}

static PyObject *on_step_begin(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    long long began_ns = now_ns();
    if (!is_quiet(quiet) || !is_here(quiet)) {
        return leave_to(quiet, "on_step_begin", args, count, names);
    }
    begin_step(quiet, began_ns);
    quiet->hook_ns += now_ns() - began_ns;
    Py_RETURN_NONE;
}

static PyObject *clear(Quiet *quiet, PyObject *Py_UNUSED(unused))
{
    quiet->sign_ns = quiet->batch_ns = quiet->batch_wait_ns = 0;
    quiet->micro_batches = quiet->forward_samples = quiet->forward_tokens = quiet->optimizer_steps = 0;
    quiet->loaded_samples = quiet->loaded_tokens = quiet->data_wait_ns = 0;
    quiet->has_loader = quiet->has_cleared = 0;
    return Py_NewRef(Py_None);
}

/* Fill the place of a row, and begin the next step; it takes over ``used``, ``waits`` and ``peaks``. */
static void add_row(Quiet *quiet, Row *row, PyObject *stated, PyObject *peaks, PyObject *used, PyObject *waits)
{
    row->step = quiet->steps;
    row->source = Py_NewRef(quiet->name);
    row->began_ns = quiet->started_ns;
    row->sign_ns = quiet->sign_ns ? quiet->sign_ns : quiet->batch_ns;
    row->micro_batches = quiet->micro_batches;
    row->forward_samples = quiet->forward_samples;
    row->forward_tokens = quiet->forward_tokens;
    row->loaded_samples = quiet->loaded_samples;
    row->loaded_tokens = quiet->loaded_tokens;
    row->data_wait_ns = quiet->data_wait_ns;
    row->has_loader = quiet->has_loader;
    row->stated = Py_XNewRef(stated);
    row->peaks = peaks;
    row->used = used;
    row->waits = waits;
    quiet->block->count += 1;
    Py_DECREF(clear(quiet, NULL));
}

static int tell_probes(Quiet *quiet, int had_news)
{
    PyObject *step = PyLong_FromLongLong(quiet->steps);
    PyObject *result = step == NULL ? NULL : PyObject_CallFunctionObjArgs(
        quiet->advance_probes, step, had_news ? Py_True : Py_False, NULL);
    Py_XDECREF(step);
    int is_probing = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    quiet->is_probing = is_probing > 0;
    return is_probing < 0 ? -1 : 0;
}

/* A step of such a length ended: what is long follows what is usual, to which one step adds little. */
static void learn(Quiet *quiet, long long wall_ns)
{
    long long usual_ns = quiet->usual_ns ? quiet->usual_ns : wall_ns;
    long long most_ns = usual_ns >> LIMIT_SHIFT, change_ns = wall_ns - usual_ns;
    change_ns = change_ns > most_ns ? most_ns : change_ns < -most_ns ? -most_ns : change_ns;
    quiet->usual_ns = usual_ns + (change_ns >> WEIGHT_SHIFT);
    quiet->long_ns = quiet->usual_ns + (quiet->usual_ns >> LONG_SHIFT);
}

static PyObject *learn_length(Quiet *quiet, PyObject *number)
{
    long long wall_ns;
    if (to_ns(number, &wall_ns) < 0) {
        return NULL;
    }
    learn(quiet, wall_ns);
    Py_RETURN_NONE;
}

/* End a step: 1 where that was done, 0 where Python has to, -1 with an error set. */
static int end_step(Quiet *quiet, PyObject *boundary, PyObject *emitter, PyObject *stated, long long ended_ns)
{
    if (!is_quiet(quiet) || quiet->steps >= quiet->last || !is_same_text(boundary, quiet->name) || !is_here(quiet)) {
        return 0;
    }
    int alone = is_alone(quiet, emitter);
    if (alone != 1) {
        return alone < 0 ? -1 : 0;
    }
    long long spent_ns = 0;
    PyObject *peaks = NULL, *used = NULL, *waits = NULL;
    int had_news = quiet->has_news;
    quiet->steps += 1;
    if (had_news) {
        quiet->has_news = 0;
        PyObject *news = PyObject_CallNoArgs(quiet->take_news);
        if (news == NULL || !PyArg_ParseTuple(news, "LO", &spent_ns, &peaks)) {
            Py_XDECREF(news);
            return -1;
        }
        peaks = peaks == Py_None ? NULL : Py_NewRef(peaks);
        Py_DECREF(news);
    }
    if (quiet->has_waits && (waits = PyObject_CallNoArgs(quiet->take_waits)) == NULL) {
        goto failed;
    }
    if (ended_ns - quiet->started_ns > quiet->long_ns || waits != NULL || !(quiet->steps & EACH_READ_MASK)) {
        used = PyObject_CallNoArgs(quiet->read_counters);
        if (used == NULL) {
            goto failed;
        }
    }
    if ((quiet->is_probing || had_news) && tell_probes(quiet, had_news) < 0) {
        goto failed;
    }
    Row *row = next_row(quiet);
    if (row == NULL) {
        goto failed;
    }
    row->end_ns = ended_ns;
    row->hook_ns = quiet->hook_ns + spent_ns;
    add_row(quiet, row, stated, peaks, used, waits);
    learn(quiet, ended_ns - row->began_ns);
    quiet->started_ns = now_ns();
    quiet->hook_ns = quiet->started_ns - ended_ns;
    return 1;
failed:
    Py_XDECREF(peaks);
    Py_XDECREF(used);
    Py_XDECREF(waits);
    return -1;
}

/* Whether steps of such an optimizer may run the model forward several times: asked once for each class. */
static int reevaluates(Quiet *quiet, PyObject *optimizer)
{
    PyObject *class = (PyObject *)Py_TYPE(optimizer);
    if (class == quiet->stepped_class) {
        return 0;
    }
    PyObject *result = PyObject_CallFunctionObjArgs(quiet->reevaluates, optimizer, NULL);
    int answer = result == NULL ? -1 : PyObject_IsTrue(result);
    Py_XDECREF(result);
    if (answer == 0) {
        PyObject *old = quiet->stepped_class;
        quiet->stepped_class = Py_NewRef(class);
        Py_XDECREF(old);
    }
    return answer;
}

static PyObject *on_optimizer_step(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    long long began_ns;
    if (!is_quiet(quiet) || names != NULL || count < 1 || count > 3) {
        return leave_to(quiet, "on_optimizer_step", args, count, names);
    }
    if (parse_now(args, count, 2, &began_ns) < 0) {
        return give_up(quiet);
    }
    int is_boundary = is_same_text(quiet->name, s_optimizer);
    int answer = is_boundary ? end_step(quiet, quiet->name, args[0], NULL, began_ns) : 0;
    if (!is_boundary && is_here(quiet) && quiet->last) {
        int alone = is_alone(quiet, NULL);
        int repeats = alone < 0 || alone == 2 ? alone : reevaluates(quiet, args[0]);
        answer = repeats < 0 ? -1 : repeats == 0;
        if (answer == 1 && is_quiet(quiet)) {
            quiet->optimizer_steps += 1;
            quiet->hook_ns += now_ns() - began_ns;
            Py_RETURN_NONE;
        }
        answer = answer < 0 ? -1 : 0;
    }
    if (answer < 0) {
        return give_up(quiet);
    }
    return answer ? Py_NewRef(Py_None) : leave_to(quiet, "on_optimizer_step", args, 1, NULL);
}

static PyObject *on_scaler_update(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    long long began_ns = now_ns();
    PyObject *has_stepped = named_argument(args, count, names, s_has_stepped);
    int answer = 0;
    if (is_quiet(quiet) && count == 1 && has_stepped != NULL && (has_stepped != Py_True || quiet->optimizer_steps)) {
        answer = end_step(quiet, s_grad_scaler, args[0], NULL, began_ns);
    }
    if (answer < 0) {
        return give_up(quiet);
    }
    return answer ? Py_NewRef(Py_None) : leave_to(quiet, "on_scaler_update", args, count, names);
}

/* The fields that a boundary states: what ``read()`` returns, or the arguments by names; NULL with an error set. */
static PyObject *read_stated(PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *read = count > 2 ? args[2] : named_argument(args, count, names, s_read);
    if (read != NULL && read != Py_None) {
        return PyObject_CallNoArgs(read);
    }
    PyObject *stated = PyDict_New();
    Py_ssize_t further = names == NULL ? 0 : PyTuple_Size(names);
    for (Py_ssize_t index = 0; stated != NULL && index < further; index++) {
        PyObject *name = PyTuple_GetItem(names, index);
        if (!is_same_text(name, s_read) && PyDict_SetItem(stated, name, args[count + index]) < 0) {
            Py_CLEAR(stated);
        }
    }
    return stated;
}

static PyObject *on_step_end(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    long long began_ns = now_ns();
    if (!is_quiet(quiet) || count < 2 || count > 3) {
        return leave_to(quiet, "on_step_end", args, count, names);
    }
    PyObject *stated = read_stated(args, count, names);
    if (stated == NULL) {
        return give_up(quiet);
    }
    long long ended_ns = now_ns();
    int answer = end_step(quiet, args[0], args[1], stated, ended_ns);
    PyObject *result = NULL;
    if (answer < 0) {
        result = give_up(quiet);
    } else if (answer) {
        result = Py_NewRef(Py_None);
    } else {
        PyObject *method = PyDict_GetItemString(quiet->guarded, "on_step_end");
        PyObject *positional = PyTuple_Pack(2, args[0], args[1]);
        if (method != NULL && positional != NULL) {
            Py_INCREF(method);
            result = PyObject_Call(method, positional, PyDict_Check(stated) ? stated : NULL);
            Py_DECREF(method);
        }
        Py_XDECREF(positional);
    }
    Py_DECREF(stated);
    quiet->hook_ns += ended_ns - began_ns;
    return result;
}

/* What is queued from now on comes behind the rows that are there. */
static PyObject *close_block(Quiet *quiet, PyObject *Py_UNUSED(unused))
{
    Block *block = quiet->block;
    quiet->block = NULL;
    Py_XDECREF((PyObject *)block);
    Py_RETURN_NONE;
}

/* ---- types ---- */

#define OBJECTS(VISIT)                                                                                                 \
    VISIT(alone) VISIT(name) VISIT(tensor_class) VISIT(is_grad_enabled) VISIT(dtype) VISIT(stepped_class)              \
    VISIT(append) VISIT(file) VISIT(make_lines) VISIT(counters) VISIT(advance_probes) VISIT(begin_forward) VISIT(fail) \
    VISIT(find_input) VISIT(find_loaded) VISIT(is_traced_alone) VISIT(read_counters) VISIT(reevaluates)                \
    VISIT(take_news) VISIT(take_waits) VISIT(guarded)
#define NUMBERS(NUMBER)                                                                                                \
    NUMBER(steps) NUMBER(last) NUMBER(hook_ns) NUMBER(started_ns) NUMBER(sign_ns) NUMBER(batch_ns)                     \
    NUMBER(batch_wait_ns) NUMBER(long_ns) NUMBER(usual_ns) NUMBER(micro_batches) NUMBER(forward_samples) NUMBER(forward_tokens)         \
    NUMBER(optimizer_steps) NUMBER(loaded_samples) NUMBER(loaded_tokens) NUMBER(data_wait_ns)
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

static PyMethodDef block_methods[] = {{"lines", block_lines, METH_VARARGS, NULL}, {"take", block_take, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static PyType_Slot block_slots[] = {{Py_tp_dealloc, block_dealloc}, {Py_tp_methods, block_methods}, {0, NULL}};
static PyType_Spec block_spec = {
    "perfscope.hooks.native.quiet.Block", sizeof(Block), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    block_slots};

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
    block_type = (PyTypeObject *)PyType_FromSpec(&block_spec);
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
