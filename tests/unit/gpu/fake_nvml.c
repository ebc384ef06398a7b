/* A libnvidia-ml.so.1 of an imaginary machine: what nvidia-ml-py resolves for probe/gpu, and no more.
 *
 * GPU 0 is an H100: GPM, NVLink, ECC, XID events; it may be divided (MIG). GPU 1 is an A10, with ECC off: it has none
 * of these. Every value is another one. Structures and numbers are those of nvml.h; a test compares the sizes with
 * nvidia-ml-py's. `fake` is the test's side: variables, not the environment, for faults come and go while threads run.
 */
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10,
       FUNCTION_NOT_FOUND = 13, VERSION_MISMATCH = 25 };

struct fake {
    int count;       /* GPUs */
    int init;        /* what initialising returns */
    int error[2];    /* what every call about that GPU returns */
    int hang;        /* asking for a utilisation does not return */
    int mig;         /* GPU 0 is divided */
    int names;       /* 0: calls have their old and new names, 1: the old ones only, 2: the new ones only */
    int xid;         /* the next event of GPU 0 */
    int asked_ms;    /* how long an event was last waited for */
    int sessions;    /* what is held: initialisations, samples, sets of events, threads that wait for one */
    int samples;
    int event_sets;
    int waiting;
    int torn;        /* ended while a thread waited */
};
volatile struct fake fake;

typedef struct { int gpu, place; } device;   /* place: -1, or of a MIG device */
static device gpus[2] = {{0, -1}, {1, -1}};
static device places[4] = {{0, 0}, {0, 1}, {0, 2}, {0, 3}};
static const unsigned instances[4] = {2, 2, 0, 9};  /* GPU instances; the third place is empty */

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
typedef struct { unsigned gpu, memory; } utilization;
typedef union { double d; unsigned ui; unsigned long ul; unsigned long long ull; } value;
typedef struct { unsigned field, scope; long long at, latency; int type, status; value value; } field_value;
typedef struct { device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_data;
typedef struct { unsigned version; int sensor, temperature; } temperature_v1;
typedef struct { unsigned version, supported; } gpm_support;
typedef struct { unsigned id; int status; double value; char *names[3]; } gpm_metric;
typedef struct { int order; int instance; } sample;
typedef struct { unsigned version, count; sample *first, *second; gpm_metric metrics[]; } gpm_question;

const size_t fake_sizes[] = {
    sizeof(memory_v2), sizeof(utilization), sizeof(field_value), sizeof(event_data), sizeof(temperature_v1),
    sizeof(gpm_support), sizeof(gpm_metric), offsetof(gpm_question, metrics),
};

static int fault(const device *d) { return fake.sessions > 0 ? fake.error[d->gpu] : UNINITIALIZED; }

#define ASK(d) do { int status = fault(d); if (status) return status; } while (0)
#define H100_ONLY(d) do { if ((d)->gpu != 0) return NOT_SUPPORTED; } while (0)

static void pause_ms(long ms) { nanosleep(&(struct timespec){0, ms * 1000000}, NULL); }

int nvmlInitWithFlags(unsigned flags) { (void)flags; if (!fake.init) fake.sessions++; return fake.init; }
int nvmlShutdown(void) { fake.torn |= fake.waiting; fake.sessions--; return SUCCESS; }
int nvmlSystemGetDriverVersion(char *text, unsigned length) { strncpy(text, "595.58.03", length); return SUCCESS; }
int nvmlSystemGetCudaDriverVersion_v2(int *number) { *number = 13010; return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = fake.count; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device **d) { ASK(&gpus[index]); *d = &gpus[index]; return SUCCESS; }

int nvmlDeviceGetUUID(device *d, char *uuid, unsigned size)
{
    static const char *const of_place[] = {"MIG-a", "MIG-b", "", "MIG-c"};
    ASK(d);
    strncpy(uuid, d->place >= 0 ? of_place[d->place] : d->gpu ? "GPU-a10" : "GPU-h100", size);
    return SUCCESS;
}

int nvmlDeviceGetName(device *d, char *name, unsigned size)
{
    ASK(d);
    strncpy(name, d->gpu ? "NVIDIA A10" : "NVIDIA H100 80GB HBM3", size);
    if (d->place >= 0)
        strcat(name, instances[d->place] == 2 ? " MIG 1c.2g.20gb" : " MIG 1g.10gb");
    return SUCCESS;
}

int nvmlDeviceGetClockInfo(device *d, int type, unsigned *mhz)
{
    ASK(d);
    *mhz = type == 1 ? (d->gpu ? 1695 : 1980) : type == 2 ? (d->gpu ? 6251 : 2619) : 0;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(device *d, int sensor, unsigned *celsius)
{
    ASK(d);
    if (fake.names == 2) return FUNCTION_NOT_FOUND;
    *celsius = sensor ? 0 : d->gpu ? 55 : 41;
    return SUCCESS;
}

int nvmlDeviceGetTemperatureV(device *d, temperature_v1 *answer)
{
    ASK(d);
    if (fake.names == 1) return FUNCTION_NOT_FOUND;
    if (answer->version != (sizeof(*answer) | 1 << 24)) return VERSION_MISMATCH;
    answer->temperature = answer->sensor ? 0 : d->gpu ? 55 : 41;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(device *d, unsigned *mw) { ASK(d); *mw = d->gpu ? 98765 : 412345; return SUCCESS; }
int nvmlDeviceGetPowerManagementLimit(device *d, unsigned *mw) { ASK(d); *mw = d->gpu ? 150000 : 650500; return SUCCESS; }

int nvmlDeviceGetUtilizationRates(device *d, utilization *rates)
{
    ASK(d);
    while (fake.hang) pause_ms(1);
    if (fake.mig && !d->gpu) return NOT_SUPPORTED;
    *rates = d->gpu ? (utilization){63, 29} : (utilization){87, 34};
    return SUCCESS;
}

static int reasons(device *d, unsigned long long *bits, int name)
{
    ASK(d);
    if (fake.names == 3 - name) return FUNCTION_NOT_FOUND;
    *bits = d->gpu ? 0x1 : 0x104;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device *d, unsigned long long *bits) { return reasons(d, bits, 1); }
int nvmlDeviceGetCurrentClocksEventReasons(device *d, unsigned long long *bits) { return reasons(d, bits, 2); }
int nvmlDeviceGetPcieReplayCounter(device *d, unsigned *count) { ASK(d); *count = d->gpu ? 4 : 17; return SUCCESS; }

int nvmlDeviceGetMemoryInfo_v2(device *d, memory_v2 *memory)
{
    const unsigned long long mib = 1 << 20;
    ASK(d);
    if (memory->version != (sizeof(*memory) | 2 << 24)) return VERSION_MISMATCH;
    if (d->place >= 0) memory->used = instances[d->place] * 1000 * mib, memory->free = 77 * mib, memory->reserved = 0;
    else if (d->gpu) memory->used = 21000 * mib, memory->free = 1731 * mib, memory->reserved = 297 * mib;
    else memory->used = 62464 * mib, memory->free = 18432 * mib, memory->reserved = 663 * mib + mib / 2;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(device *d, int count, field_value *fields)
{
    enum { UNSIGNED = 1, LONG_LONG = 3 };
    static const struct { unsigned field; int type; unsigned long long of[2]; } known[] = {
        {82, 0, {52, 255}},  /* the memory's temperature: no double, and 255 is none */
        {83, LONG_LONG, {9876543210, 1234567890}}, {74, LONG_LONG, {1111111111111, 700}}, {75, LONG_LONG, {2222222, 800}},
        {3, LONG_LONG, {13}}, {4, LONG_LONG, {2}}, {142, UNSIGNED, {5}}, {143, UNSIGNED, {3}}, {145, UNSIGNED, {1}},
    };
    ASK(d);
    for (field_value *f = fields; f < fields + count; f++) {
        f->status = NOT_SUPPORTED;
        for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++) {
            if (known[i].field != f->field || !known[i].of[d->gpu]) continue;
            f->status = SUCCESS;
            f->type = known[i].type;
            f->value.ull = ~0ull;  /* what a shorter member leaves */
            if (f->type == LONG_LONG) f->value.ull = known[i].of[d->gpu];
            else f->value.ui = known[i].of[d->gpu];
        }
    }
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device *d, unsigned *now, unsigned *next) { ASK(d); H100_ONLY(d); *now = *next = fake.mig; return SUCCESS; }
int nvmlDeviceGetMaxMigDeviceCount(device *d, unsigned *count) { ASK(d); *count = fake.mig ? 4 : 0; return SUCCESS; }

int nvmlDeviceGetMigDeviceHandleByIndex(device *d, unsigned index, device **found)
{
    ASK(d);
    *found = &places[index];
    return instances[index] ? SUCCESS : NOT_FOUND;
}

int nvmlDeviceGetGpuInstanceId(device *d, unsigned *id) { ASK(d); *id = instances[d->place]; return SUCCESS; }

int nvmlGpmQueryDeviceSupport(device *d, gpm_support *support)
{
    ASK(d);
    if (support->version != 1) return VERSION_MISMATCH;
    support->supported = !d->gpu;
    return SUCCESS;
}

int nvmlGpmSampleAlloc(sample **s) { fake.samples++; *s = calloc(1, sizeof(**s)); return SUCCESS; }
int nvmlGpmSampleFree(sample *s) { fake.samples--; free(s); return SUCCESS; }

static int take(device *d, sample *s, int instance)
{
    static int order;
    ASK(d);
    H100_ONLY(d);
    *s = (sample){++order, instance};
    return SUCCESS;
}

int nvmlGpmSampleGet(device *d, sample *s) { return fake.mig ? NOT_SUPPORTED : take(d, s, -1); }
int nvmlGpmMigSampleGet(device *d, unsigned instance, sample *s) { return take(d, s, instance); }

int nvmlGpmMetricsGet(gpm_question *q)
{
    static const struct { unsigned id; double value; } known[] = {
        {1, 87.5}, {2, 61.25}, {3, 23.5}, {5, 18.75}, {10, 44.5}, {20, 12.5}, {21, 6.25}, {60, 150}, {61, 100},
    };
    if (q->version != 1) return VERSION_MISMATCH;
    if (!q->first->order || q->first->order >= q->second->order || q->first->instance != q->second->instance)
        return INVALID_ARGUMENT;
    for (gpm_metric *m = q->metrics; m < q->metrics + q->count; m++) {
        m->status = INVALID_ARGUMENT;
        for (size_t i = 0; i < sizeof(known) / sizeof(*known); i++)
            if (known[i].id == m->id) m->status = SUCCESS, m->value = known[i].value;
        if (q->first->instance >= 0) {  /* an instance has no traffic of its own, and this one had no cycles to count */
            if (m->id >= 20) m->status = NOT_SUPPORTED;
            m->value = m->id == 10 ? NAN : m->value + q->first->instance;
        }
    }
    return SUCCESS;
}

int nvmlEventSetCreate(int **set) { fake.event_sets++; *set = calloc(1, sizeof(**set)); return SUCCESS; }
int nvmlEventSetFree(int *set) { fake.event_sets--; free(set); return SUCCESS; }

int nvmlDeviceRegisterEvents(device *d, unsigned long long types, int *set)
{
    ASK(d);
    H100_ONLY(d);
    *set |= types == 8;
    return types == 8 ? SUCCESS : NOT_SUPPORTED;
}

int nvmlEventSetWait_v2(int *set, event_data *event, unsigned timeout_ms)
{
    if (fake.sessions <= 0) return UNINITIALIZED;
    fake.asked_ms = timeout_ms;
    fake.waiting = 1;
    pause_ms(1);  /* no test wants to wait longer */
    fake.waiting = 0;
    if (!fake.xid || !*set) return TIMEOUT;
    *event = (event_data){&gpus[0], 8, fake.xid, ~0u, ~0u};
    fake.xid = 0;
    return SUCCESS;
}
