/* Histogram of float32 values by the upper 14 bits of their pattern, with moments, in one pass.
 *
 * The meaning of every number is in histogram.py, whose NumPy code gives bit-equal results: element i is added to lane
 * i % 16 in order, the square of a float32 is exact in float64 (so a fused multiply-add changes nothing), and an
 * excluded value adds nothing.
 *
 * A block stays in the L1 cache: vector code writes keys and adds moments, scalar code counts the keys in four
 * histograms by turns, so that equal neighbours do not wait for each other's store. Those four are scratch space, which
 * the caller gives zeroed and gets back zeroed.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#define KEYS 16384
#define SHIFT 18
#define LANES 16
#define BLOCK 2048          /* elements; a multiple of LANES */
#define TURNS 4             /* histograms counted by turns */
#define STRIDE (KEYS + 272) /* from one to the next: equal keys must not lie 4 KB apart, which stalls the processor */
#define AHEAD 4096          /* bytes that are asked for in advance */
#define DIRECT 8192         /* arrays below this size are counted in place */
#define FLUSH (1ull << 32)  /* elements after which a 32-bit counter might overflow */
#define SENTINEL_BITS 0x7149F2CAu /* 1e30f */
#define INFINITY_BITS 0x7F800000u
#define MAGNITUDE 0x7FFFFFFFu

#if defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__)
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_CPU
#endif

/* The data comes from far memory: it was just written by another part of the program, megabytes ago. */
#if defined(__GNUC__) || defined(__clang__)
#define FETCH_AHEAD(p) __builtin_prefetch((const void *)((uintptr_t)(p) + AHEAD))
#else
#define FETCH_AHEAD(p) ((void)0)
#endif

typedef struct {
    double lanes[3][LANES]; /* sums of x, |x|, x*x */
    float low[LANES], high[LANES];
    int64_t count, nan, inf, sentinels;
} Tally;

/* Counts n keys, a multiple of TURNS. */
static inline void count_by_turns(const uint16_t *restrict keys, size_t n, uint32_t *restrict turns)
{
    for (size_t i = 0; i < n; i += TURNS) {
        turns[keys[i]]++;
        turns[STRIDE + keys[i + 1]]++;
        turns[2 * STRIDE + keys[i + 2]]++;
        turns[3 * STRIDE + keys[i + 3]]++;
    }
}

/* Keys and moments of n values (a multiple of LANES); gives their largest magnitude, as a bit pattern. Where that is
 * excluded the moments are left as they were. By the way it counts as many keys of the block before, by turns: the
 * counting waits for stores and the moments for arithmetic, so the two together cost little more than one. */
FOR_EACH_CPU static uint32_t block_clean(const float *restrict x, size_t n, uint16_t *restrict keys, Tally *restrict t,
                                         const uint16_t *restrict before, uint32_t *restrict turns)
{
    double sum[LANES], magnitudes[LANES], squares[LANES];
    float low[LANES], high[LANES];
    uint32_t most[LANES] = {0};
    memcpy(sum, t->lanes[0], sizeof sum);
    memcpy(magnitudes, t->lanes[1], sizeof magnitudes);
    memcpy(squares, t->lanes[2], sizeof squares);
    memcpy(low, t->low, sizeof low);
    memcpy(high, t->high, sizeof high);
    for (size_t i = 0; i < n; i += LANES) {
        FETCH_AHEAD(x + i);
        for (int j = 0; j < LANES; j++) {
            float v = x[i + j] + 0.0f; /* -0.0 becomes 0.0 */
            uint32_t bits;
            memcpy(&bits, &v, sizeof bits);
            keys[i + j] = (uint16_t)(bits >> SHIFT);
            uint32_t magnitude = bits & MAGNITUDE;
            most[j] = magnitude > most[j] ? magnitude : most[j];
            double wide = (double)v;
            sum[j] += wide;
            magnitudes[j] += fabs(wide);
            squares[j] += wide * wide;
            low[j] = v < low[j] ? v : low[j];
            high[j] = v > high[j] ? v : high[j];
        }
        if (before)
            count_by_turns(before + i, LANES, turns);
    }
    uint32_t largest = 0;
    for (int j = 0; j < LANES; j++)
        largest = most[j] > largest ? most[j] : largest;
    if (largest > SENTINEL_BITS)
        return largest;
    memcpy(t->lanes[0], sum, sizeof sum);
    memcpy(t->lanes[1], magnitudes, sizeof magnitudes);
    memcpy(t->lanes[2], squares, sizeof squares);
    memcpy(t->low, low, sizeof low);
    memcpy(t->high, high, sizeof high);
    t->count += (int64_t)n;
    return largest;
}

/* As block_clean for any n, with exclusions; gives the number of keys written. */
static size_t block_mixed(const float *x, size_t n, uint16_t *keys, Tally *t, uint32_t *largest)
{
    size_t kept = 0;
    for (size_t i = 0; i < n; i++) {
        size_t j = i % LANES;
        float v = x[i] + 0.0f;
        uint32_t bits;
        memcpy(&bits, &v, sizeof bits);
        uint32_t magnitude = bits & MAGNITUDE;
        if (magnitude > SENTINEL_BITS) {
            if (magnitude > INFINITY_BITS)
                t->nan++;
            else if (magnitude == INFINITY_BITS)
                t->inf++;
            else
                t->sentinels++;
            continue;
        }
        *largest = magnitude > *largest ? magnitude : *largest;
        keys[kept++] = (uint16_t)(bits >> SHIFT);
        double wide = (double)v;
        t->lanes[0][j] += wide;
        t->lanes[1][j] += fabs(wide);
        t->lanes[2][j] += wide * wide;
        t->low[j] = v < t->low[j] ? v : t->low[j];
        t->high[j] = v > t->high[j] ? v : t->high[j];
    }
    t->count += (int64_t)kept;
    return kept;
}

static void count_direct(const uint16_t *keys, size_t n, int64_t *counts)
{
    for (size_t i = 0; i < n; i++)
        counts[keys[i]]++;
}

/* Adds the four histograms to the counts and clears them; `largest` bounds the magnitudes that were counted. */
FOR_EACH_CPU static void flush(uint32_t *restrict turns, int64_t *restrict counts, uint32_t largest, const Tally *t)
{
    size_t used = (largest >> SHIFT) + 1;
    int negative = 0;
    for (int j = 0; j < LANES; j++)
        negative |= t->low[j] < 0.0f;
    for (size_t sign = 0; sign < (negative ? KEYS : KEYS / 2); sign += KEYS / 2) {
        uint32_t *a = turns + sign, *b = a + STRIDE, *c = b + STRIDE, *d = c + STRIDE;
        for (size_t k = 0; k < used; k++)
            counts[sign + k] += (int64_t)a[k] + b[k] + c[k] + d[k];
        memset(a, 0, used * sizeof *a);
        memset(b, 0, used * sizeof *b);
        memset(c, 0, used * sizeof *c);
        memset(d, 0, used * sizeof *d);
    }
}

static double add_lanes(double *lanes)
{
    for (int width = LANES / 2; width; width /= 2)
        for (int j = 0; j < width; j++)
            lanes[j] += lanes[j + width];
    return lanes[0];
}

static void run(const float *x, size_t n, int64_t *counts, uint32_t *turns, Tally *t)
{
    uint16_t buffers[2][BLOCK];
    uint16_t *keys = buffers[0], *before = NULL; /* `before`: a full block of keys not yet counted */
    uint32_t largest = 0;
    uint64_t since = 0;
    int direct = n < DIRECT;
    for (size_t start = 0; start < n; start += BLOCK) {
        const float *block = x + start;
        size_t size = n - start < BLOCK ? n - start : BLOCK, whole = size - size % LANES, kept = size;
        uint32_t seen = block_clean(block, whole, keys, t, before, turns);
        if (before && whole < BLOCK)
            count_by_turns(before + whole, BLOCK - whole, turns);
        if (seen > SENTINEL_BITS) {
            kept = block_mixed(block, size, keys, t, &largest);
        } else {
            largest = seen > largest ? seen : largest;
            kept = whole + block_mixed(block + whole, size - whole, keys + whole, t, &largest);
        }
        before = NULL;
        if (direct) {
            count_direct(keys, kept, counts);
        } else if (kept == BLOCK && start + BLOCK < n) {
            before = keys;
            keys = keys == buffers[0] ? buffers[1] : buffers[0];
        } else {
            count_by_turns(keys, kept - kept % TURNS, turns);
            for (size_t i = kept - kept % TURNS; i < kept; i++)
                turns[keys[i]]++;
        }
        since += kept;
        if (since >= FLUSH - 2 * BLOCK) {
            flush(turns, counts, largest, t);
            since = 0;
        }
    }
    if (!direct)
        flush(turns, counts, largest, t);
}

static PyObject *accumulate(PyObject *self, PyObject *args)
{
    Py_buffer values, counts, scratch;
    (void)self;
    if (!PyArg_ParseTuple(args, "y*w*w*", &values, &counts, &scratch))
        return NULL;
    PyObject *result = NULL;
    if (values.len % 4 || (uintptr_t)values.buf % 4) {
        PyErr_SetString(PyExc_ValueError, "the values are not aligned float32");
    } else if (counts.len != KEYS * (Py_ssize_t)sizeof(int64_t) || (uintptr_t)counts.buf % 8) {
        PyErr_SetString(PyExc_ValueError, "the histogram is not 16384 aligned int64");
    } else if (scratch.len != TURNS * STRIDE * (Py_ssize_t)sizeof(uint32_t) || (uintptr_t)scratch.buf % 4) {
        PyErr_SetString(PyExc_ValueError, "the scratch space is not 66624 aligned uint32");
    } else {
        Tally t;
        memset(&t, 0, sizeof t);
        for (int j = 0; j < LANES; j++) {
            t.low[j] = INFINITY;
            t.high[j] = -INFINITY;
        }
        Py_BEGIN_ALLOW_THREADS
        run(values.buf, (size_t)values.len / 4, counts.buf, scratch.buf, &t);
        Py_END_ALLOW_THREADS
        float low = t.low[0], high = t.high[0];
        for (int j = 1; j < LANES; j++) {
            low = t.low[j] < low ? t.low[j] : low;
            high = t.high[j] > high ? t.high[j] : high;
        }
        if (!t.count)
            low = high = 0.0f;
        result = Py_BuildValue("LdddddLLL", (long long)t.count, (double)low, (double)high, add_lanes(t.lanes[0]),
                               add_lanes(t.lanes[1]), add_lanes(t.lanes[2]), (long long)t.nan, (long long)t.inf,
                               (long long)t.sentinels);
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&counts);
    PyBuffer_Release(&scratch);
    return result;
}

static PyMethodDef methods[] = {
    {"accumulate", accumulate, METH_VARARGS,
     "accumulate(values, counts, scratch) -> (count, min, max, sum, sum_abs, sum_squares, nan, inf, sentinels)"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_histogram", "The compiled histogram kernel.", -1, methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__histogram(void)
{
    return PyModule_Create(&module);
}
