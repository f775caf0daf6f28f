/* The hooks, as quick_hooks.py explains them. */
#include "quiet.h"

#define EACH_READ_MASK 15
#define LONG_SHIFT 3
#define LIMIT_SHIFT 2
#define WEIGHT_SHIFT 4

PyObject *on_batch_loaded(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
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

PyObject *on_forward(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    return forward(quiet, args, count, names, "on_forward");
}

PyObject *on_model_call(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    if (!quiet->knows_precision) {
        return leave_to(quiet, "on_model_call", args, count, names);
    }
    return forward(quiet, args, count, names, "on_model_call");
}

PyObject *on_gradients_cleared(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
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

PyObject *on_step_begin(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    long long began_ns = now_ns();
    if (!is_quiet(quiet) || !is_here(quiet)) {
        return leave_to(quiet, "on_step_begin", args, count, names);
    }
    begin_step(quiet, began_ns);
    quiet->hook_ns += now_ns() - began_ns;
    Py_RETURN_NONE;
}

PyObject *clear(Quiet *quiet, PyObject *Py_UNUSED(unused))
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

PyObject *learn_length(Quiet *quiet, PyObject *number)
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

PyObject *on_optimizer_step(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
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

PyObject *on_scaler_update(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
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

PyObject *on_step_end(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names)
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
PyObject *close_block(Quiet *quiet, PyObject *Py_UNUSED(unused))
{
    Block *block = quiet->block;
    quiet->block = NULL;
    Py_XDECREF((PyObject *)block);
    Py_RETURN_NONE;
}
