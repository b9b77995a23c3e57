/* The best column of a row, and the decision. */

#include "common.h"

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
