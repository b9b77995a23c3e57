/* What experts say. */

#include "common.h"

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
