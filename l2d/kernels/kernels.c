/* What the CPU does for small batches without torch, one call for what takes torch five to twenty.

All but deferral_loss copy, compare and choose, or compute what has one correct rounding, so that numbers are those of torch bit for
bit. __init__.py checks what it passes on. Tables are row by row: the columns of a row are
next to each other, and rows are `stride` numbers apart. A function returns 1 if an index is out of range, else 0. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__)
#define FAST __attribute__((target_clones("arch=x86-64-v3", "default"))) /* AVX2 and FMA where the CPU has them */
#else
#define FAST
#endif

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

static void work_of_thread(void *work) {
    const Work *w = work;
    int64_t part = omp_get_thread_num(), parts = omp_get_num_threads();
    w->work(w->with, w->rows * part / parts, w->rows * (part + 1) / parts);
}

/* work(with, begin, end) for all rows, some in each thread if they have enough numbers. */
static void in_parallel(void (*work)(void *, int64_t, int64_t), void *with, int64_t rows, int64_t numbers) {
    Work all = {work, with, rows};
    if (GOMP_parallel && omp_get_num_threads && omp_get_thread_num && numbers >= PARALLEL_FROM)
        GOMP_parallel(work_of_thread, &all, 0, 0);
    else
        work(with, 0, rows);
}

/* Which source this was built from, so that a library from before a change of it is not used. */
uint32_t source_checksum(void) { return SOURCE_CHECKSUM; }

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline)) /* so that it is compiled as the function that it is used in */
#define PREFETCH(address) __builtin_prefetch(address)
#else
#define INLINE static inline
#define PREFETCH(address) ((void)(address))
#endif

#define PRAGMA(words) _Pragma(#words)
#define SIMD(...) PRAGMA(omp simd reduction(__VA_ARGS__)) /* a sum or maximum in vectors, in another order than one by one */

/* exp(x) and exp(x) - 1 in vectors: exp(x) = 2^n exp(r) with |r| <= log(2) / 2; the polynomial is exp(r) - 1. Below -87 they are those of
-87, where exp is 1e-38. */
#define EXP_PARTS(x)                                                                                                   \
    float bounded = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;                                                       \
    float n = bounded * 1.44269504f + 12582912.0f - 12582912.0f; /* rounded: at 1.5 * 2^23 a float has no fraction */  \
    float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;                                                         \
    float p = 1.9875691500e-4f;                                                                                        \
    p = p * r + 1.3981999507e-3f;                                                                                      \
    p = p * r + 8.3334519073e-3f;                                                                                      \
    p = p * r + 4.1665795894e-2f;                                                                                      \
    p = p * r + 1.6666665459e-1f;                                                                                      \
    p = p * r + 5.0000001201e-1f;                                                                                      \
    p = p * r * r + r;                                                                                                 \
    int32_t bits = ((int32_t)n + 127) << 23;                                                                           \
    float power;                                                                                                       \
    memcpy(&power, &bits, sizeof power);

INLINE float exp_of(float x) {
    EXP_PARTS(x)
    return p * power + power;
}

INLINE float expm1_of(float x) {
    EXP_PARTS(x)
    return p * power + (power - 1.0f);
}

/* log(1 + e) for e in [0, 1] = 2 artanh(e / (2 + e)), by its series. */
INLINE float log1p_of(float e) {
    float s = e / (2.0f + e), square = s * s, sum = 1.0f / 15;
    sum = sum * square + 1.0f / 13;
    sum = sum * square + 1.0f / 11;
    sum = sum * square + 1.0f / 9;
    sum = sum * square + 1.0f / 7;
    sum = sum * square + 1.0f / 5;
    sum = sum * square + 1.0f / 3;
    return 2.0f * s * (sum * square + 1.0f);
}

INLINE float highest_of(const float *x, int64_t n) {
    float most = -INFINITY;
    SIMD(max : most)
    for (int64_t c = 0; c < n; c++) most = x[c] > most ? x[c] : most;
    return most;
}

/* Sums are of floats inside a block and of doubles over the blocks: fast, and right for thousands of columns. */
#define BLOCKS(n) for (int64_t from = 0, to; to = from + 256 < (n) ? from + 256 : (n), from < (n); from = to)

/* sum_c t_c (-log p_c) with p = softmax(x), and its gradient times `scale`. */
INLINE double softmax_row(const float *x, const float *t, float *gradient, int64_t n, float scale) {
    float most = highest_of(x, n);
    double sum = 0, taught = 0, along = 0;
    BLOCKS(n) {
        float exps = 0, targets = 0, products = 0;
        SIMD(+ : exps, targets, products)
        for (int64_t c = from; c < to; c++) {
            float e = exp_of(x[c] - most);
            gradient[c] = e;
            exps += e;
            targets += t[c];
            products += t[c] * (x[c] - most);
        }
        sum += exps, taught += targets, along += products;
    }
    float share = taught / sum;
    for (int64_t c = 0; c < n; c++) gradient[c] = (gradient[c] * share - t[c]) * scale;
    return taught * log(sum) - along;
}

/* sum_c t_c (1 - p_c^q) / q with p = softmax(x), and its gradient times `scale`. */
INLINE double power_row(const float *x, const float *t, float *gradient, int64_t n, float q, float scale) {
    float most = highest_of(x, n);
    double sum = 0, loss = 0, flow = 0;
    BLOCKS(n) {
        float exps = 0;
        SIMD(+ : exps)
        for (int64_t c = from; c < to; c++) exps += gradient[c] = exp_of(x[c] - most);
        sum += exps;
    }
    float log_sum = log(sum);
    BLOCKS(n) {
        float losses = 0, flows = 0;
        SIMD(+ : losses, flows)
        for (int64_t c = from; c < to; c++) {
            float less = expm1_of(q * (x[c] - most - log_sum)); /* p_c^q - 1 */
            losses -= t[c] * less;
            flows += t[c] * (1.0f + less);
        }
        loss += losses, flow += flows;
    }
    float share = flow / sum;
    for (int64_t c = 0; c < n; c++) {
        float raised = 1.0f + expm1_of(q * (x[c] - most - log_sum));
        gradient[c] = (gradient[c] * share - t[c] * raised) * scale;
    }
    return loss / q;
}

/* Binary cross-entropies with logits x - shift, added up, and their gradient times `scale`. */
INLINE double binary_row(const float *x, const float *t, float *gradient, int64_t n, float shift, float scale) {
    double loss = 0;
    BLOCKS(n) {
        float losses = 0;
        SIMD(+ : losses)
        for (int64_t c = from; c < to; c++) {
            float logit = x[c] - shift, size = logit < 0 ? -logit : logit;
            float e = exp_of(-size), above = logit < 0 ? 0.0f : logit;
            losses += above - logit * t[c] + log1p_of(e);
            gradient[c] = ((logit < 0 ? e : 1.0f) / (1.0f + e) - t[c]) * scale;
        }
        loss += losses;
    }
    return loss;
}

/* As decoupled, with the experts' logits measured against all classes but the predicted one: x - log sum_{k != yhat} exp(x_k). */
INLINE double asymmetric_row(const float *x, const float *t, float *gradient, int64_t classes, int64_t experts, float weight,
                             float scale) {
    float most = highest_of(x, classes), second = -INFINITY;
    double sum = 0, flow = 0;
    int64_t predicted = 0;
    while (predicted < classes - 1 && x[predicted] != most) predicted++;
    for (int part = 0; part < 2; part++) { /* the classes before the predicted one, and those after it */
        float found = part ? highest_of(x + predicted + 1, classes - predicted - 1) : highest_of(x, predicted);
        second = found > second ? found : second;
    }
    BLOCKS(classes) {
        float exps = 0;
        SIMD(+ : exps)
        for (int64_t c = from; c < to; c++) {
            float e = exp_of(x[c] - second);
            exps += c == predicted ? 0.0f : e;
        }
        sum += exps;
    }
    float others = second + log(sum);
    double loss = softmax_row(x, t, gradient, classes, scale);
    loss += weight * binary_row(x + classes, t + classes, gradient + classes, experts, others, weight * scale);
    for (int64_t j = classes; j < classes + experts; j++) flow += gradient[j];
    float share = flow / sum;
    for (int64_t c = 0; c < classes; c++) {
        float e = share * exp_of(x[c] - second);
        gradient[c] -= c == predicted ? 0.0f : e;
    }
    return loss;
}

/* Psi(u), with u = sum_c t_c p_c the probability of the columns that are right (t_c = 1, else 0): -log u for q = 0, else (1 - u^q) / q; and
its gradient times `scale`. */
INLINE double realizable_row(const float *x, const float *t, float *gradient, int64_t n, float q, float scale) {
    float most = highest_of(x, n), most_right = -INFINITY;
    double all = 0, right = 0;
    SIMD(max : most_right)
    for (int64_t c = 0; c < n; c++) most_right = t[c] != 0 && x[c] > most_right ? x[c] : most_right;
    BLOCKS(n) {
        float exps = 0, exps_right = 0;
        SIMD(+ : exps, exps_right)
        for (int64_t c = from; c < to; c++) {
            exps += exp_of(x[c] - most);
            exps_right += t[c] * exp_of(x[c] - most_right);
        }
        all += exps, right += exps_right;
    }
    float loss = most - most_right + (log(all) - log(right));
    float less = q > 0 ? expm1f(-q * loss) : 0; /* u^q - 1 */
    float whole = (1 + less) * scale / all, part = (1 + less) * scale / right;
    for (int64_t c = 0; c < n; c++)
        gradient[c] = exp_of(x[c] - most) * whole - t[c] * exp_of(x[c] - most_right) * part;
    return q > 0 ? -less / q : loss;
}

enum { VANILLA, PICCE, PICE, SOFT_PICCE };                 /* which experts are taught */
enum { SOFTMAX, POWER, BINARY, DECOUPLED, ASYMMETRIC, REALIZABLE }; /* how a column is taught */
enum { NOT_EARNED, EARNED_BY_ALL, EARNED_BY_BEST };        /* which classes earn the cost of asking */

/* The weights of the experts into t [experts], by scores x and whether they are right. The entropy of the weights is returned where they
are a distribution, else 0. NaN counts as the highest score, as in torch. */
INLINE float taught_experts(const float *x, const uint8_t *right, float *t, int64_t experts, int64_t who) {
    float highest = -INFINITY;
    double sum = 0, along = 0;
    int64_t best = -1;
    for (int64_t j = 0; j < experts; j++) {
        t[j] = who == VANILLA && right[j];
        if ((who == PICE || right[j]) && (best < 0 || x[j] > highest || (x[j] != x[j] && highest == highest)))
            best = j, highest = x[j];
    }
    if (who == VANILLA || best < 0 || !right[best]) return 0;
    if (who != SOFT_PICCE) {
        t[best] = 1;
        return 0;
    }
    BLOCKS(experts) {
        float exps = 0, products = 0;
        SIMD(+ : exps, products)
        for (int64_t c = from; c < to; c++) {
            float e = exp_of(x[c] - highest), score = x[c] - highest;
            t[c] = right[c] ? e : 0.0f;
            exps += t[c];
            products += right[c] ? e * score : 0.0f;
        }
        sum += exps, along += products;
    }
    float share = 1 / sum;
    for (int64_t j = 0; j < experts; j++) t[j] *= share;
    return log(sum) - along / sum; /* the entropy: - sum_j w_j log w_j */
}

/* The mean loss of scores [rows, classes + experts] into *mean, and its gradient, which has the same shape. `answers` are integers of
`bytes` bytes, below 0 where there is none: such an expert takes no part. The experts' terms count `weight`, below 0: one unit for all who
answered. `cost` is added to what the classes are taught that earn it. */
FAST int deferral_loss(const float *scores, int64_t stride, const int64_t *labels, const void *answers, int64_t bytes,
                       float *gradient, double *mean, int64_t rows, int64_t classes, int64_t experts, int64_t who,
                       int64_t base, float q, float weight, int64_t earned, float cost) {
    int64_t n = classes + experts;
    float *x = malloc(2 * n * sizeof(float)), *t = x + n, scale = 1.0f / rows;
    uint8_t *right = malloc(2 * experts), *missing = right + experts;
    double total = 0;
    int failed = !x || !right || classes < 2;
    for (int64_t i = 0; i < rows && !failed; i++, scores += stride, gradient += n) {
        int64_t label = labels[i], given = 0;
        if (label < 0 || label >= classes) {
            failed = 1;
            break;
        }
        memcpy(x, scores, n * sizeof(float));
        for (int64_t j = 0; j < experts; j++) {
            int64_t at = i * experts + j;
            int64_t said = bytes == 1   ? ((const int8_t *)answers)[at]
                           : bytes == 2 ? ((const int16_t *)answers)[at]
                                        : ((const int64_t *)answers)[at];
            right[j] = said == label;
            missing[j] = said < 0;
            given += said >= 0;
        }
        if (given < experts)
            for (int64_t j = 0; j < experts; j++) x[classes + j] = missing[j] ? -1e30f : x[classes + j];
        for (int64_t c = 0; c < classes; c++) t[c] = earned == EARNED_BY_ALL ? cost : 0.0f;
        if (earned == EARNED_BY_BEST) {
            float most = highest_of(x, classes);
            int64_t predicted = 0;
            while (predicted < classes - 1 && x[predicted] != most) predicted++;
            t[predicted] = cost;
        }
        t[label] += 1.0f;
        float entropy = taught_experts(x + classes, right, t + classes, experts, who);
        float factor = weight >= 0 ? weight : 1.0f / (given > 0 ? given : 1);
        if (base <= POWER && factor != 1.0f) { /* undone in what the scores mean */
            float shift = logf(factor) / (1.0f - q);
            for (int64_t c = classes; c < n; c++) x[c] += shift, t[c] *= factor;
        }
        if (base == SOFTMAX)
            total += softmax_row(x, t, gradient, n, scale);
        else if (base == POWER)
            total += power_row(x, t, gradient, n, q, scale);
        else if (base == BINARY && factor == 1.0f)
            total += binary_row(x, t, gradient, n, 0.0f, scale);
        else if (base == REALIZABLE)
            total += realizable_row(x, t, gradient, n, q, scale);
        else if (base == ASYMMETRIC)
            total += asymmetric_row(x, t, gradient, classes, experts, factor, scale);
        else {
            total += base == BINARY ? binary_row(x, t, gradient, classes, 0.0f, scale)
                                    : softmax_row(x, t, gradient, classes, scale);
            total += factor * binary_row(x + classes, t + classes, gradient + classes, experts, 0.0f, factor * scale);
        }
        total -= factor * entropy;
        if (given < experts)
            for (int64_t j = 0; j < experts; j++) gradient[classes + j] = missing[j] ? 0.0f : gradient[classes + j];
    }
    free(x);
    free(right);
    *mean = total / rows;
    return failed;
}

/* out [rows]: the first column of the highest number in each row of a table [rows, columns]; NaN counts as the highest. Each lane of a
vector looks at every eighth column (fourth, of doubles), for compilers do not vectorise a search for themselves. */
#define ARGMAX(name, number, integer)                                                                                  \
    typedef number number##s __attribute__((vector_size(32)));                                                         \
    typedef integer integer##s __attribute__((vector_size(32)));                                                       \
    FAST int name(const number *table, int64_t stride, int64_t *out, int64_t rows, int64_t columns) {                  \
        const int lanes = 32 / sizeof(number);                                                                         \
        for (int64_t i = 0; i < rows; i++) {                                                                           \
            const number *row = table + i * stride;                                                                    \
            number##s most = (number##s){0} - INFINITY;                                                                \
            integer##s at = {0}, here = {0}, nan = {0};                                                                \
            for (int k = 0; k < lanes; k++) here[k] = k;                                                               \
            int64_t c = 0;                                                                                             \
            for (; c + lanes <= columns; c += lanes, here += lanes) {                                                  \
                number##s x;                                                                                           \
                memcpy(&x, row + c, sizeof x);                                                                         \
                integer##s higher = x > most;                                                                          \
                most = (number##s)((higher & (integer##s)x) | (~higher & (integer##s)most));                           \
                at = (higher & here) | (~higher & at);                                                                 \
                nan |= x != x;                                                                                         \
            }                                                                                                          \
            number highest = -INFINITY;                                                                                \
            int64_t best = 0, any_nan = 0;                                                                             \
            for (int k = 0; k < lanes; k++) {                                                                          \
                any_nan |= nan[k];                                                                                     \
                if (most[k] > highest || (most[k] == highest && at[k] < best)) highest = most[k], best = at[k];        \
            }                                                                                                          \
            for (; c < columns; c++) {                                                                                 \
                any_nan |= row[c] != row[c];                                                                           \
                if (row[c] > highest) highest = row[c], best = c;                                                      \
            }                                                                                                          \
            if (any_nan)                                                                                               \
                for (best = 0; row[best] == row[best];) best++;                                                        \
            out[i] = best;                                                                                             \
        }                                                                                                              \
        return 0;                                                                                                      \
    }
ARGMAX(argmax_float, float, int32_t)
ARGMAX(argmax_double, double, int64_t)

/* The column of the highest utility, among equals that of the highest order, then the first; -1 where that is not a question of numbers. */
#define BEST(name, number)                                                                                             \
    INLINE int64_t name(const double *utility, const number *order, int64_t n) {                                       \
        double most = -INFINITY;                                                                                       \
        number ahead = -INFINITY;                                                                                      \
        int64_t best = -1, nan = 0;                                                                                    \
        PRAGMA(omp simd reduction(max : most) reduction(| : nan))                                                      \
        for (int64_t c = 0; c < n; c++) {                                                                              \
            most = utility[c] > most ? utility[c] : most;                                                              \
            nan |= utility[c] != utility[c];                                                                           \
        }                                                                                                              \
        for (int64_t c = 0; c < n; c++)                                                                                \
            if (utility[c] == most && order[c] > ahead) best = c, ahead = order[c];                                    \
        return nan ? -1 : best;                                                                                        \
    }                                                                                                                  \
                                                                                                                       \
    FAST static void name##_rows(Decisions *d, int64_t begin, int64_t end) {                                           \
        int64_t classes = d->classes, experts = d->experts;                                                            \
        for (int64_t i = begin; i < end && !d->failed; i++) {                                                          \
            const double *beliefs = d->beliefs + i * (classes + experts), *utility = d->utility + i * d->stride;       \
            const number *order = (const number *)d->order + i * (classes + experts), *rank = order + classes;         \
            int64_t predicted = name(beliefs, order, classes), expert = name(utility, rank, experts);                  \
            if (predicted < 0 || expert < 0) {                                                                         \
                d->failed = 1;                                                                                         \
                return;                                                                                                \
            }                                                                                                          \
            double *restrict gain = d->gain + i * experts, worth = beliefs[predicted];                                 \
            int64_t level = 0;                                                                                         \
            SIMD(| : level)                                                                                            \
            for (int64_t j = 0; j < experts; j++) {                                                                    \
                gain[j] = utility[j] - worth;                                                                          \
                level |= gain[j] == 0;                                                                                 \
            }                                                                                                          \
            for (int64_t j = 0; level && j < experts; j++)                                                             \
                if (gain[j] == 0 && rank[j] > order[predicted]) gain[j] = DBL_MIN;                                     \
            memset(d->asked + i * experts, 0, experts);                                                                \
            d->asked[i * experts + expert] = gain[expert] > 0;                                                         \
            d->predicted[i] = predicted;                                                                               \
            d->expert[i] = expert;                                                                                     \
        }                                                                                                              \
    }

typedef struct {
    const double *beliefs, *utility;
    const void *order;
    int64_t *predicted, *expert, stride, rows, classes, experts, bytes;
    double *gain;
    uint8_t *asked;
    volatile int failed;
} Decisions;
BEST(best_by_floats, float)
BEST(best_by_doubles, double)

static void decide_some(void *decisions, int64_t begin, int64_t end) {
    Decisions *d = decisions;
    if (d->bytes == 4)
        best_by_floats_rows(d, begin, end);
    else
        best_by_doubles_rows(d, begin, end);
}

/* The decision of each row by beliefs [rows, classes + experts] and the experts' utility [rows, experts] in rows `stride` apart: the predicted
class, the expert with the highest utility, gain [rows, experts] = utility - belief in the predicted class (where they are equal and
the order puts the expert first, the least positive number), and whether each is asked. `order` is like beliefs, in numbers of `bytes`. */
int decide(const double *beliefs, const double *utility, int64_t stride, const void *order, int64_t bytes, int64_t *predicted,
           int64_t *expert, double *gain, uint8_t *asked, int64_t rows, int64_t classes, int64_t experts) {
    Decisions d = {beliefs, utility, order, predicted, expert, stride, rows, classes, experts, bytes, gain, asked, 0};
    in_parallel(decide_some, &d, rows, rows * (classes + experts));
    return d.failed;
}

typedef struct {
    const void *answers;
    const int64_t *labels;
    int64_t *majority, rows, experts;
    int32_t *right, *given, *right_of, *given_of;
    volatile int failed;
} Panel;

/* `votes` has room for every class that an answer of this type can name. */
#define HEARD(name, integer, most_classes)                                                                             \
    FAST static void name##_rows(void *panel, int64_t begin, int64_t end) {                                            \
        Panel *p = panel;                                                                                              \
        int64_t experts = p->experts;                                                                                  \
        int32_t *votes = calloc(most_classes, sizeof(int32_t));                                                        \
        if (!votes) p->failed = 1;                                                                                     \
        for (int64_t i = begin; i < end && !p->failed; i++) {                                                          \
            const integer *said = (const integer *)p->answers + i * experts;                                           \
            int64_t label = p->labels[i], first = 0;                                                                   \
            int32_t right = 0, given = 0, most = 0;                                                                    \
            for (int64_t j = 0; j < experts; j++) right += said[j] >= 0 && said[j] == label, given += said[j] >= 0;    \
            for (int64_t j = 0; j < experts; j++) {                                                                    \
                if (said[j] < 0) continue;                                                                             \
                int32_t so_far = ++votes[said[j]];                                                                     \
                most = so_far > most ? so_far : most;                                                                  \
            }                                                                                                          \
            while (given && (said[first] < 0 || votes[said[first]] < most)) first++;                                   \
            p->right[i] = right, p->given[i] = given, p->majority[i] = given ? said[first] : -1;                       \
            if (experts > most_classes / 8)                                                                            \
                memset(votes, 0, most_classes * sizeof(int32_t));                                                      \
            else                                                                                                       \
                for (int64_t j = 0; j < experts; j++)                                                                  \
                    if (said[j] >= 0) votes[said[j]] = 0;                                                              \
        }                                                                                                              \
        free(votes);                                                                                                   \
    }                                                                                                                  \
                                                                                                                       \
    FAST static void name##_columns(void *panel, int64_t begin, int64_t end) {                                         \
        Panel *p = panel;                                                                                              \
        for (int64_t from = begin, to; from < end; from = to) {                                                        \
            int32_t right[256] = {0}, given[256] = {0}; /* its own: two threads that write to neighbours are slow */   \
            to = from + 256 < end ? from + 256 : end;                                                                  \
            for (int64_t i = 0; i < p->rows; i++) {                                                                    \
                const integer *said = (const integer *)p->answers + i * p->experts + from;                             \
                int64_t label = p->labels[i];                                                                          \
                for (int64_t j = 0; j < to - from; j++)                                                                \
                    right[j] += said[j] >= 0 && said[j] == label, given[j] += said[j] >= 0;                            \
            }                                                                                                          \
            memcpy(p->right_of + from, right, (to - from) * sizeof(int32_t));                                          \
            memcpy(p->given_of + from, given, (to - from) * sizeof(int32_t));                                          \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    int name(const void *answers, const int64_t *labels, int64_t *majority, int32_t *right, int32_t *given,            \
             int32_t *right_of, int32_t *given_of, int64_t rows, int64_t experts) {                                    \
        Panel p = {answers, labels, majority, rows, experts, right, given, right_of, given_of, 0};                     \
        in_parallel(name##_rows, &p, rows, rows *experts);                                                             \
        in_parallel(name##_columns, &p, experts, rows *experts);                                                       \
        return p.failed;                                                                                               \
    }
/* Of each row of answers (below 0: none): what most experts say, among equals what the first of them says, -1 if nobody says anything; how
many are right; and how many say something. Of each expert: how often it is right, and how often it says something. */
HEARD(heard_8, int8_t, (1 << 7))
HEARD(heard_16, int16_t, (1 << 15))

typedef struct {
    const void *answers;
    const int64_t *labels;
    const double *gain;
    const uint8_t *asked;
    int64_t experts;
    int32_t *there, *heard;
} Asked;

#define RIGHT(name, integer)                                                                                           \
    FAST static void name##_rows(void *asked, int64_t begin, int64_t end) {                                            \
        Asked *a = asked;                                                                                              \
        for (int64_t i = begin; i < end; i++) {                                                                        \
            const integer *said = (const integer *)a->answers + i * a->experts;                                        \
            const double *gain = a->gain + i * a->experts;                                                             \
            const uint8_t *asks = a->asked + i * a->experts;                                                           \
            int64_t label = a->labels[i], to;                                                                          \
            int32_t there = 0, heard = 0;                                                                              \
            for (int64_t from = 0; from < a->experts; from = to) {                                                     \
                to = from + 64 < a->experts ? from + 64 : a->experts;                                                  \
                int64_t some = to - from;                                                                              \
                uint8_t counts[64];                                                                                    \
                for (int64_t j = 0; j < some; j++) counts[j] = (said[from + j] == label) & (gain[from + j] > -INFINITY); \
                for (int64_t j = 0; j < some; j++) there += counts[j], heard += counts[j] & asks[from + j];            \
            }                                                                                                          \
            a->there[i] = there, a->heard[i] = heard;                                                                  \
        }                                                                                                              \
    }                                                                                                                  \
                                                                                                                       \
    int name(const void *answers, const int64_t *labels, const double *gain, const uint8_t *asked, int32_t *there,     \
             int32_t *heard, int64_t rows, int64_t experts) {                                                          \
        Asked a = {answers, labels, gain, asked, experts, there, heard};                                               \
        in_parallel(name##_rows, &a, rows, rows *experts);                                                             \
        return 0;                                                                                                      \
    }
/* Of each row of answers (below 0: none): how many experts are right and there (gain above -infinity), and how many of those are asked. */
RIGHT(right_8, int8_t)
RIGHT(right_16, int16_t)

/* out [rows, columns]: (table - mean) * scale, of each column its own. */
FAST int standardise(const float *table, int64_t stride, const float *mean, const float *scale, float *out, int64_t rows,
                     int64_t columns) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < columns; c++)
            out[i * columns + c] = (table[i * stride + c] - mean[c]) * scale[c];
    return 0;
}

/* Index i on an axis of n pixels that is continued by reflection. */
static inline int64_t reflected(int64_t i, int64_t n) {
    i = i < 0 ? -i : i;
    return i < n ? i : 2 * (n - 1) - i;
}

/* n bytes to `to`, in the opposite order if they are mirrored. */
static inline void copy_run(uint8_t *to, const uint8_t *from, int64_t n, int mirrored) {
    if (n < 8) {
        for (int64_t i = 0; i < n; i++) to[i] = from[mirrored ? n - 1 - i : i];
        return;
    }
    for (int64_t i = 0;; i += 8) { /* eight at a time; the last eight may overlap with those before */
        uint64_t eight;
        if (i > n - 8) i = n - 8;
        memcpy(&eight, from + (mirrored ? n - 8 - i : i), 8);
        if (mirrored) { /* compiles to one instruction */
            eight = (eight >> 32) | (eight << 32);
            eight = ((eight & 0xFFFF0000FFFF0000u) >> 16) | ((eight & 0x0000FFFF0000FFFFu) << 16);
            eight = ((eight & 0xFF00FF00FF00FF00u) >> 8) | ((eight & 0x00FF00FF00FF00FFu) << 8);
        }
        memcpy(to + i, &eight, 8);
        if (i == n - 8) return;
    }
}

#define BLOCK 4096 /* bytes that are cropped at a time and stay in the caches */

typedef struct {
    const uint8_t *images;
    const int64_t *index, *top, *left, *mirrored;
    const float *scale, *shift;
    float *out;
    int64_t count, channels, rows, columns, height, width, padding;
} Windows;

/* The windows `begin` to `end` of those that crop_flip describes. */
FAST static void crop_some(void *windows, int64_t begin, int64_t end) {
    const Windows *w = windows;
    uint8_t block[BLOCK];
    int64_t size = w->channels * w->rows * w->columns, width = w->width, most = BLOCK / width;
    for (int64_t b = begin; b < end; b++) {
        const uint8_t *image = w->images + w->index[b] * size;
        if (b + 1 < end) /* the next one comes from anywhere in memory */
            for (int64_t i = 0; i < size && i < BLOCK; i += 64) PREFETCH(w->images + w->index[b + 1] * size + i);
        int64_t x = w->left[b] - w->padding, y = w->top[b] - w->padding;
        int64_t first = x < 0 ? -x : 0, last = w->columns - x < width ? w->columns - x : width; /* inside the image */
        int flip = w->mirrored[b] != 0;
        for (int64_t c = 0; c < w->channels; c++)
            for (int64_t done = 0; done < w->height; done += most) {
                int64_t some = w->height - done < most ? w->height - done : most;
                for (int64_t r = 0; r < some; r++) {
                    const uint8_t *from = image + (c * w->rows + reflected(y + done + r, w->rows)) * w->columns;
                    uint8_t *to = block + r * width;
                    copy_run(to + (flip ? width - last : first), from + x + first, last - first, flip);
                    for (int64_t i = 0; i < first; i++) to[flip ? width - 1 - i : i] = from[reflected(x + i, w->columns)];
                    for (int64_t i = last; i < width; i++) to[flip ? width - 1 - i : i] = from[reflected(x + i, w->columns)];
                }
                float *floats = w->out + ((b * w->channels + c) * w->height + done) * width;
                float scale = w->scale[c], shift = w->shift[c];
                for (int64_t i = 0; i < some * width; i++) floats[i] = block[i] * scale + shift;
            }
    }
}

/* out [count, channels, height, width]: of images[index[b]] the window at (top[b], left[b]) of the image that is padded by
reflection, perhaps mirrored, each pixel times scale[c] plus shift[c]. Images are [num_images, channels, rows, columns]. */
int crop_flip(const uint8_t *images, int64_t num_images, const int64_t *index, const int64_t *top, const int64_t *left,
              const int64_t *mirrored, const float *scale, const float *shift, float *out, int64_t count, int64_t channels,
              int64_t rows, int64_t columns, int64_t height, int64_t width, int64_t padding) {
    Windows w = {images, index, top, left, mirrored, scale, shift, out, count, channels, rows, columns, height, width, padding};
    if (padding >= rows || padding >= columns || padding >= width || width > BLOCK) return 1;
    for (int64_t b = 0; b < count; b++)
        if (index[b] < 0 || index[b] >= num_images || top[b] < 0 || top[b] > rows + 2 * padding - height || left[b] < 0 ||
            left[b] > columns + 2 * padding - width)
            return 1;
    in_parallel(crop_some, &w, count, count * channels * height * width);
    return 0;
}

/* Ask for large pages: memory that is mapped anew is then there four times as fast as in pages of 4 kB. */
int large_pages(void *memory, int64_t bytes) {
#if defined(MADV_HUGEPAGE)
    uintptr_t page = 4096, first = ((uintptr_t)memory + page - 1) / page * page, last = ((uintptr_t)memory + bytes) / page * page;
    return first < last && madvise((void *)first, last - first, MADV_HUGEPAGE) != 0;
#else
    return 1;
#endif
}

/* An importable module without contents: ctypes calls the functions above, and needs no more than its file. */
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "compiled", NULL, -1, NULL, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_compiled(void) { return PyModule_Create(&module); }
