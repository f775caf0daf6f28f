/* A libnvidia-ml.so.1 that behaves as FAKE_NVML says, as NVML's documentation tells that the real one does.

   FAKE_NVML is a list of words: gpus=2, mig=1 (the GPU of that number is in MIG mode), lost=0@1500 (that GPU is lost that many milliseconds after the start),
   throttle=4, hot=1@1200 (that GPU's clock is so many MHz, because of its temperature), capped (a power limit below the default), no_fields, no_init. -DWITHOUT_EVENT_REASONS leaves a
   function out, as old drivers do.

   Power is 400 W with a swing of 200 W every 2 s, so that its integral is known in closed form. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, LOST = 15 };
typedef struct { int index; } Device;
typedef struct { unsigned id, scope; long long at, latency; unsigned type; int code; union { double d; unsigned long long u; } value; } Field;

static Device devices[8];
static double started;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static const char *word(const char *name) {
    const char *text = getenv("FAKE_NVML");
    size_t length = strlen(name);
    while (text && *text) {
        if (!strncmp(text, name, length) && strchr("= ", text[length])) return text + length + (text[length] == '=');
        text = strchr(text, ' ');
        text = text ? text + 1 : NULL;
    }
    return NULL;
}

static long number(const char *name, long otherwise) {
    const char *text = word(name);
    return text ? atol(text) : otherwise;
}

static int lost(const Device *device) {
    const char *text = word("lost");
    if (!text || atol(text) != device->index) return 0;
    return now() - started > atol(strchr(text, '@') + 1) / 1e3;
}

/* The clock of a GPU that is too hot; 0 of another one. */
static long hot(const Device *device) {
    const char *text = word("hot");
    return text && atol(text) == device->index ? atol(strchr(text, '@') + 1) : 0;
}

static int in_mig_mode(const Device *device) { return number("mig", -1) == device->index; }
#define ALIVE if (lost(device)) return LOST

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    if (word("no_init")) return DRIVER_NOT_LOADED;
    started = now();
    for (int index = 0; index < 8; index++) {
        devices[index] = (Device){index};
    }
    return OK;
}

int nvmlSystemGetDriverVersion(char *text, unsigned length) { snprintf(text, length, "999.1"); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("gpus", 2); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) { *device = &devices[index]; return OK; }

int nvmlDeviceGetUUID(Device *device, char *text, unsigned length) {
    snprintf(text, length, "GPU-0000000%d-aaaa-bbbb-cccc-000000000000", device->index);
    return OK;
}

int nvmlDeviceGetName(Device *device, char *text, unsigned length) {
    (void)device;
    snprintf(text, length, "Imagined GPU");
    return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(Device *device, unsigned *mw) { ALIVE; *mw = word("capped") ? 500000 : 700000; return OK; }
int nvmlDeviceGetPowerManagementDefaultLimit(Device *device, unsigned *mw) { ALIVE; *mw = 700000; return OK; }
int nvmlDeviceGetMaxClockInfo(Device *device, unsigned kind, unsigned *mhz) { ALIVE; (void)kind; *mhz = 1980; return OK; }
int nvmlDeviceGetClockInfo(Device *device, unsigned kind, unsigned *mhz) { ALIVE; (void)kind; *mhz = hot(device) ? hot(device) : 1755; return OK; }
int nvmlDeviceGetTemperature(Device *device, unsigned sensor, unsigned *celsius) { ALIVE; (void)sensor; *celsius = 61; return OK; }

int nvmlDeviceGetMemoryInfo(Device *device, unsigned long long *info) {
    ALIVE;
    unsigned long long total = 80000000000ULL;
    info[0] = total; info[1] = total - 5000000000ULL; info[2] = 5000000000ULL;
    return OK;
}

int nvmlDeviceGetUtilizationRates(Device *device, unsigned *rates) {
    ALIVE;
    rates[0] = 97; rates[1] = 40;
    return OK;
}

int nvmlDeviceGetPowerUsage(Device *device, unsigned *mw) { ALIVE; *mw = 400000 + 200000 * sin(M_PI * now()); return OK; }

#ifndef WITHOUT_EVENT_REASONS
int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *bits) { ALIVE; *bits = hot(device) ? 0x40 : number("throttle", 0); return OK; }
#endif
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *bits) { ALIVE; *bits = hot(device) ? 0x40 : number("throttle", 0); return OK; }

int nvmlDeviceGetFieldValues(Device *device, int count, Field *fields) {
    ALIVE;
    if (word("no_fields")) return NOT_SUPPORTED;
    for (int place = 0; place < count; place++) {
        unsigned id = fields[place].id;
        fields[place].type = 3;
        fields[place].code = id == 138 || id == 139 || id == 74 ? OK : NOT_SUPPORTED; /* no PCIe counters: some GPUs have none */
        fields[place].value.u = id == 74 ? (now() - started) * 5e8 : (now() - started) * (id == 138 ? 2e6 : 1e6);
    }
    return OK;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) { *current = *pending = in_mig_mode(device); return OK; }
