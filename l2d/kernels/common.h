/* What the CPU does for small batches without torch, one call for what takes torch five to twenty.

All but deferral_loss copy, compare and choose, or compute what has one correct rounding, so that numbers are those of torch bit for
bit. __init__.py checks what it passes on. Tables are row by row: the columns of a row are next to each other, and rows are `stride`
numbers apart. A function returns 1 if it cannot serve (an index is out of range), else 0. */

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FAST __attribute__((target_clones("arch=x86-64-v3", "default"))) /* AVX2 and FMA where the CPU has them */
#else
#define FAST
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline)) /* so that it is compiled as the function that it is used in */
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define INLINE static inline
#define PREFETCH(address) ((void)(address))
#endif

#define PRAGMA(words) _Pragma(#words)
#define SIMD(...) PRAGMA(omp simd reduction(__VA_ARGS__)) /* a sum or maximum in vectors, in another order than one by one */

/* torch's own threads, where torch runs on GNU OpenMP: found when this library is loaded, not linked. */
#if defined(__linux__) && defined(__GNUC__)
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak)), omp_get_num_threads(void) __attribute__((weak));
#else
static void (*const GOMP_parallel)(void (*)(void *), void *, unsigned, unsigned) = 0;
static int (*const omp_get_thread_num)(void) = 0, (*const omp_get_num_threads)(void) = 0;
#endif
#define PARALLEL_FROM 32768 /* numbers, as in torch */

typedef struct {
    void (*work)(void *, int64_t, int64_t);
    void *with;
    int64_t rows;
} Work;

static inline void work_of_thread(void *work) {
    const Work *w = work;
    int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
    w->work(w->with, w->rows * part / parts, w->rows * (part + 1) / parts);
}

/* work(with, begin, end) for all rows, some in each thread if they have enough numbers. */
static inline void in_parallel(void (*work)(void *, int64_t, int64_t), void *with, int64_t rows, int64_t numbers) {
    Work all = {work, with, rows};
    if (GOMP_parallel && omp_get_num_threads && omp_get_thread_num && numbers >= PARALLEL_FROM)
        GOMP_parallel(work_of_thread, &all, 0, 0);
    else
        work(with, 0, rows);
}
