/* The hooks of a quiet step in C: they read the clock, count, and append a row of numbers.
 *
 * QuietSteps is the same class as the one in quick_hooks.py, attribute by attribute and method by method, and that is
 * where both are explained; a test trains with both and compares their records. In a step that waited for a device
 * nothing of Python's code for a hook is in the processor's caches. A method here touches its own lines of code and the
 * lines of one struct; everything else is left to the guarded method whose place it takes.
 *
 * Nothing here lets go of the interpreter's lock but the calls of Python's functions. What a hook reads through such
 * calls it reads first, then asks whether the step is still quiet, and only then counts. The files keep to Python's
 * stable interface, so that one build serves Python 3.11 and all later ones.
 */
#ifndef PERFSCOPE_QUIET_H
#define PERFSCOPE_QUIET_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define ROWS_OF_BLOCK 64

/* A quiet step, as it becomes a line of the rank's steps. */
typedef struct {
    long long step, end_ns, began_ns, sign_ns, hook_ns;
    long long micro_batches, forward_samples, forward_tokens, loaded_samples, loaded_tokens, data_wait_ns;
    PyObject *source, *stated, *peaks, *used, *waits; /* owned; NULL for what there is not */
    char has_loader;
} Row;

/* Rows that wait in the queue of the writer; more are added until it takes them. */
typedef struct {
    PyObject_HEAD
    int count;
    char is_closed;
    Row rows[ROWS_OF_BLOCK];
} Block;

/* The steps of a process, and the running one while it is quiet. */
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

extern PyTypeObject *block_type;
extern PyObject *s_in_training_mode, *s_has_stepped, *s_read, *s_shape, *s_dtype, *s_is_floating_point, *s_input_ids;
extern PyObject *s_optimizer, *s_grad_scaler;

/* rows.c: the rows of quiet steps, and their lines */
PyObject *or_none(PyObject *value);
Row *next_row(Quiet *quiet);
PyTypeObject *make_block_type(void);

/* asking.c: what hooks ask, and what they leave to Python */
long long now_ns(void);
int is_here(const Quiet *quiet);
int is_quiet(const Quiet *quiet);
int is_same_text(PyObject *first, PyObject *second);
int ask(PyObject *function);
int is_alone(const Quiet *quiet, PyObject *emitter);
int to_ns(PyObject *number, long long *value);
int count_work(Quiet *quiet, PyObject *tensor, long long *samples, long long *tokens);
int is_tensor(const Quiet *quiet, PyObject *value);
PyObject *plain_tensor(const Quiet *quiet, PyObject *value);
PyObject *plain_input(const Quiet *quiet, PyObject *args, PyObject *kwargs);
PyObject *leave_to(Quiet *quiet, const char *name, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *give_up(Quiet *quiet);
int parse_now(PyObject *const *args, Py_ssize_t count, Py_ssize_t index, long long *began_ns);
PyObject *named_argument(PyObject *const *args, Py_ssize_t count, PyObject *names, PyObject *name);

/* hooks.c: the hooks */
PyObject *on_batch_loaded(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *on_forward(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *on_model_call(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *on_gradients_cleared(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *on_step_begin(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *on_optimizer_step(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *on_scaler_update(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *on_step_end(Quiet *quiet, PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *clear(Quiet *quiet, PyObject *Py_UNUSED(unused));
PyObject *close_block(Quiet *quiet, PyObject *Py_UNUSED(unused));
PyObject *learn_length(Quiet *quiet, PyObject *number);

#endif
