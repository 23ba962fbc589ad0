/* Scales and integers of blocks of weights, many blocks at a time.
 *
 * The meaning of every number is in lanes.py, whose NumPy code gives bit-equal results: every operation is one of
 * float32, rounded by itself (the build must not fuse a product and a sum), and squares are added one after the other.
 *
 * Blocks lie side by side in a tile that stays in the L1 cache, one of each column, whatever their layout in memory.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(FLT_EVAL_METHOD) && FLT_EVAL_METHOD != 0
#error "float32 would be computed in more bits: NumPy does the work"
#endif

#define TILE 64   /* blocks of a tile */
#define LARGEST 256 /* weights of a block */
#define TO_WHOLE 12582912.0f /* 1.5 * 2^23: what is added to it is rounded to the nearest whole number, half to even */

#if defined(__GNUC__) && __GNUC__ >= 12 && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__)
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_CPU
#endif

#if defined(__GNUC__)
#define ALWAYS_INLINE static inline __attribute__((always_inline))
#else
#define ALWAYS_INLINE static inline
#endif

typedef struct {
    const char *start;
    Py_ssize_t groups, size, count;  /* sizes of the axes */
    Py_ssize_t group, step, next;    /* bytes from one to the next */
} Lanes;

typedef float Tile[LARGEST][TILE];

/* The weights of some blocks, those that are missing filled up with zeros. */
static void load(const Lanes *x, Py_ssize_t group, Py_ssize_t first, Py_ssize_t width, float (*restrict tile)[TILE])
{
    const char *from = x->start + group * x->group + first * x->next;
    if (width < TILE)
        memset(tile, 0, (size_t)x->size * sizeof tile[0]);
    if (x->next == (Py_ssize_t)sizeof(float)) {
        for (Py_ssize_t i = 0; i < x->size; i++)
            memcpy(tile[i], from + i * x->step, (size_t)width * sizeof(float));
    } else {
        for (Py_ssize_t i = 0; i < x->size; i++)
            for (Py_ssize_t j = 0; j < width; j++)
                memcpy(&tile[i][j], from + j * x->next + i * x->step, sizeof(float));
    }
}

/* Numbers of some blocks, those that are missing filled up. */
static inline void load_row(const float *from, Py_ssize_t width, float filling, float *restrict row)
{
    for (Py_ssize_t j = 0; j < width; j++)
        row[j] = from[j];
    for (Py_ssize_t j = width; j < TILE; j++)
        row[j] = filling;
}

FOR_EACH_CPU static void tile_ends(const float (*restrict tile)[TILE], Py_ssize_t size, float *restrict low,
                                   float *restrict high)
{
    for (int j = 0; j < TILE; j++)
        low[j] = high[j] = tile[0][j];
    for (Py_ssize_t i = 1; i < size; i++)
        for (int j = 0; j < TILE; j++) {
            low[j] = tile[i][j] < low[j] ? tile[i][j] : low[j];
            high[j] = tile[i][j] > high[j] ? tile[i][j] : high[j];
        }
}

/* The nearest integer of the grid, its ends left aside: whole numbers, or of floats those of E2M1 times 2. */
ALWAYS_INLINE float nearest(float ratio, int floats)
{
    if (!floats)
        return ratio + TO_WHOLE - TO_WHOLE;
    float size = fabsf(ratio);
    float step = size < 4.0f ? 1.0f : size < 8.0f ? 2.0f : 4.0f, steps = size < 4.0f ? 1.0f : size < 8.0f ? 0.5f : 0.25f;
    return (ratio * steps + TO_WHOLE - TO_WHOLE) * step;
}

ALWAYS_INLINE void errors_of(const float (*restrict tile)[TILE], Py_ssize_t size, const float *restrict scale,
                             const float *restrict low, const float *restrict high, float *restrict errors, int floats)
{
    float sums[TILE] = {0};
    for (Py_ssize_t i = 0; i < size; i++)
        for (int j = 0; j < TILE; j++) {
            float whole = nearest(tile[i][j] / scale[j], floats);
            whole = whole > low[j] ? whole : low[j];
            whole = whole < high[j] ? whole : high[j];
            float error = whole * scale[j] - tile[i][j];
            sums[j] += error * error;
        }
    memcpy(errors, sums, sizeof sums);
}

ALWAYS_INLINE void codes_of(const float (*restrict tile)[TILE], Py_ssize_t size, const float *restrict scale,
                            const float *restrict zero, const float *restrict low, const float *restrict high,
                            uint8_t (*restrict codes)[TILE], int floats)
{
    for (Py_ssize_t i = 0; i < size; i++)
        for (int j = 0; j < TILE; j++) {
            float whole = nearest(tile[i][j] / scale[j], floats);
            whole = whole > low[j] ? whole : low[j];
            whole = whole < high[j] ? whole : high[j];
            codes[i][j] = (uint8_t)(int32_t)(whole + zero[j]);
        }
}

/* Squared errors of the blocks with one scale and zero point each; low and high are the ends less the zero point. */
FOR_EACH_CPU static void tile_errors(const float (*restrict tile)[TILE], Py_ssize_t size, const float *restrict scale,
                                     const float *restrict low, const float *restrict high, float *restrict errors,
                                     int floats)
{
    if (floats)
        errors_of(tile, size, scale, low, high, errors, 1);
    else
        errors_of(tile, size, scale, low, high, errors, 0);
}

FOR_EACH_CPU static void tile_codes(const float (*restrict tile)[TILE], Py_ssize_t size, const float *restrict scale,
                                    const float *restrict zero, const float *restrict low, const float *restrict high,
                                    uint8_t (*restrict codes)[TILE], int floats)
{
    if (floats)
        codes_of(tile, size, scale, zero, low, high, codes, 1);
    else
        codes_of(tile, size, scale, zero, low, high, codes, 0);
}

static inline void grid_ends(const float *restrict zero, float least, float most, float *restrict low,
                             float *restrict high)
{
    for (int j = 0; j < TILE; j++) {
        low[j] = least - zero[j];
        high[j] = most - zero[j];
    }
}

static void run_ends(const Lanes *x, float *low, float *high)
{
    Tile tile;
    float lows[TILE], highs[TILE];
    for (Py_ssize_t g = 0; g < x->groups; g++)
        for (Py_ssize_t first = 0; first < x->count; first += TILE) {
            Py_ssize_t width = x->count - first < TILE ? x->count - first : TILE;
            load(x, g, first, width, tile);
            tile_ends((const float (*)[TILE])tile, x->size, lows, highs);
            memcpy(low + g * x->count + first, lows, (size_t)width * sizeof(float));
            memcpy(high + g * x->count + first, highs, (size_t)width * sizeof(float));
        }
}

static void run_pick(const Lanes *x, const float *scales, const float *zeros, Py_ssize_t tries, float least, float most,
                     int floats, uint8_t *best)
{
    Tile tile;
    float scale[TILE], zero[TILE], low[TILE], high[TILE], errors[TILE], fewest[TILE];
    Py_ssize_t all = x->groups * x->count;
    for (Py_ssize_t g = 0; g < x->groups; g++)
        for (Py_ssize_t first = 0; first < x->count; first += TILE) {
            Py_ssize_t width = x->count - first < TILE ? x->count - first : TILE, at = g * x->count + first;
            load(x, g, first, width, tile);
            for (int j = 0; j < TILE; j++)
                fewest[j] = INFINITY;
            memset(best + at, (int)tries, (size_t)width);
            for (Py_ssize_t t = 0; t < tries; t++) {
                load_row(scales + t * all + at, width, 1.0f, scale);
                load_row(zeros + t * all + at, width, 0.0f, zero);
                grid_ends(zero, least, most, low, high);
                tile_errors((const float (*)[TILE])tile, x->size, scale, low, high, errors, floats);
                for (Py_ssize_t j = 0; j < width; j++)
                    if (errors[j] < fewest[j]) {
                        fewest[j] = errors[j];
                        best[at + j] = (uint8_t)t;
                    }
            }
        }
}

static void run_code(const Lanes *x, const float *scales, const float *zeros, float least, float most, int floats,
                     const Lanes *out)
{
    Tile tile;
    uint8_t codes[LARGEST][TILE];
    float scale[TILE], zero[TILE], low[TILE], high[TILE];
    for (Py_ssize_t g = 0; g < x->groups; g++)
        for (Py_ssize_t first = 0; first < x->count; first += TILE) {
            Py_ssize_t width = x->count - first < TILE ? x->count - first : TILE, at = g * x->count + first;
            load(x, g, first, width, tile);
            load_row(scales + at, width, 1.0f, scale);
            load_row(zeros + at, width, 0.0f, zero);
            grid_ends(zero, least, most, low, high);
            tile_codes((const float (*)[TILE])tile, x->size, scale, zero, low, high, codes, floats);
            char *to = (char *)out->start + g * out->group + first * out->next;
            for (Py_ssize_t i = 0; i < x->size; i++) {
                if (out->next == 1)
                    memcpy(to + i * out->step, codes[i], (size_t)width);
                else
                    for (Py_ssize_t j = 0; j < width; j++)
                        to[j * out->next + i * out->step] = (char)codes[i][j];
            }
        }
}

/* Views three axes of a buffer; its items have so many bytes. */
static int view(const Py_buffer *buffer, Py_ssize_t bytes, Lanes *lanes)
{
    if (buffer->ndim != 3 || buffer->itemsize != bytes || buffer->shape[1] < 1 || buffer->shape[1] > LARGEST) {
        PyErr_SetString(PyExc_ValueError, "these are not blocks of 1 to 256 numbers along the second of three axes");
        return 0;
    }
    *lanes = (Lanes){buffer->buf, buffer->shape[0], buffer->shape[1], buffer->shape[2],
                     buffer->strides[0], buffer->strides[1], buffer->strides[2]};
    return 1;
}

static int holds(const Py_buffer *buffer, Py_ssize_t numbers, Py_ssize_t bytes)
{
    if (buffer->len == numbers * bytes && (uintptr_t)buffer->buf % (size_t)bytes == 0)
        return 1;
    PyErr_SetString(PyExc_ValueError, "there is not one number for each block");
    return 0;
}

static PyObject *ends(PyObject *self, PyObject *args)
{
    PyObject *array;
    Py_buffer x, low, high;
    (void)self;
    if (!PyArg_ParseTuple(args, "Ow*w*", &array, &low, &high))
        return NULL;
    Lanes lanes;
    int done = 0;
    if (PyObject_GetBuffer(array, &x, PyBUF_STRIDES) == 0) {
        if (view(&x, 4, &lanes) && holds(&low, lanes.groups * lanes.count, 4) && holds(&high, lanes.groups * lanes.count, 4)) {
            Py_BEGIN_ALLOW_THREADS
            run_ends(&lanes, low.buf, high.buf);
            Py_END_ALLOW_THREADS
            done = 1;
        }
        PyBuffer_Release(&x);
    }
    PyBuffer_Release(&low);
    PyBuffer_Release(&high);
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *pick_of(PyObject *args, int floats)
{
    PyObject *array;
    Py_buffer x, scales, zeros, best;
    float least, most;
    if (!PyArg_ParseTuple(args, "Oy*y*ffw*", &array, &scales, &zeros, &least, &most, &best))
        return NULL;
    Lanes lanes;
    int done = 0;
    if (PyObject_GetBuffer(array, &x, PyBUF_STRIDES) == 0) {
        if (view(&x, 4, &lanes)) {
            Py_ssize_t all = lanes.groups * lanes.count, tries = all ? scales.len / 4 / all : 0;
            if (tries > 254)
                PyErr_SetString(PyExc_ValueError, "there are more than 254 scales to try");
            else if (holds(&scales, tries * all, 4) && holds(&zeros, tries * all, 4) && holds(&best, all, 1)) {
                Py_BEGIN_ALLOW_THREADS
                run_pick(&lanes, scales.buf, zeros.buf, tries, least, most, floats, best.buf);
                Py_END_ALLOW_THREADS
                done = 1;
            }
        }
        PyBuffer_Release(&x);
    }
    PyBuffer_Release(&scales);
    PyBuffer_Release(&zeros);
    PyBuffer_Release(&best);
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *code_of(PyObject *args, int floats)
{
    PyObject *array, *made;
    Py_buffer x, out, scale, zero;
    float least, most;
    if (!PyArg_ParseTuple(args, "Oy*y*ffO", &array, &scale, &zero, &least, &most, &made))
        return NULL;
    Lanes lanes, codes;
    int done = 0;
    if (PyObject_GetBuffer(array, &x, PyBUF_STRIDES) == 0) {
        if (PyObject_GetBuffer(made, &out, PyBUF_STRIDES | PyBUF_WRITABLE) == 0) {
            if (view(&x, 4, &lanes) && view(&out, 1, &codes)) {
                Py_ssize_t all = lanes.groups * lanes.count;
                if (codes.groups != lanes.groups || codes.size != lanes.size || codes.count != lanes.count)
                    PyErr_SetString(PyExc_ValueError, "there is not one integer for each weight");
                else if (holds(&scale, all, 4) && holds(&zero, all, 4)) {
                    Py_BEGIN_ALLOW_THREADS
                    run_code(&lanes, scale.buf, zero.buf, least, most, floats, &codes);
                    Py_END_ALLOW_THREADS
                    done = 1;
                }
            }
            PyBuffer_Release(&out);
        }
        PyBuffer_Release(&x);
    }
    PyBuffer_Release(&scale);
    PyBuffer_Release(&zero);
    return done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *pick(PyObject *self, PyObject *args)
{
    (void)self;
    return pick_of(args, 0);
}

static PyObject *pick_floats(PyObject *self, PyObject *args)
{
    (void)self;
    return pick_of(args, 1);
}

static PyObject *code(PyObject *self, PyObject *args)
{
    (void)self;
    return code_of(args, 0);
}

static PyObject *code_floats(PyObject *self, PyObject *args)
{
    (void)self;
    return code_of(args, 1);
}

static PyMethodDef methods[] = {
    {"ends", ends, METH_VARARGS, "ends(lanes, low, high): the least and the largest number of each block"},
    {"pick", pick, METH_VARARGS, "pick(lanes, scales, zeros, qmin, qmax, best): which scale and zero point fits best"},
    {"pick_floats", pick_floats, METH_VARARGS, "the same on the grid of 4-bit floating-point numbers, in halves"},
    {"code", code, METH_VARARGS, "code(lanes, scale, zero, qmin, qmax, codes): the nearest integers"},
    {"code_floats", code_floats, METH_VARARGS, "the same on the grid of 4-bit floating-point numbers, in halves"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_lanes", "The compiled kernel of weights in blocks.", -1,
                                    methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__lanes(void)
{
    return PyModule_Create(&module);
}
