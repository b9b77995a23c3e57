/* The losses of the catalogue, each with its gradient. */

#include "common.h"

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

/* The first expert with the highest score of those who are right (`all`: of all), -1 if there is none. NaN counts as the highest, as in
torch. */
INLINE int64_t best_expert(const float *x, const uint8_t *right, int64_t experts, int all) {
    float highest = -INFINITY;
    int64_t nan = 0;
    PRAGMA(omp simd reduction(max : highest) reduction(| : nan))
    for (int64_t j = 0; j < experts; j++) {
        float score = all | right[j] ? x[j] : -INFINITY;
        highest = score > highest ? score : highest;
        nan |= score != score;
    }
    int32_t first = experts; /* of those with the highest score; found in vectors, and without a branch */
    SIMD(min : first)
    for (int32_t j = 0; j < experts; j++) {
        int32_t found = (all | right[j]) & (nan ? x[j] != x[j] : x[j] == highest);
        first = found && j < first ? j : first;
    }
    return first < experts ? first : -1;
}

/* The weights of the experts into t [experts], by scores x and whether they are right. The entropy of the weights is returned where they
are a distribution, else 0. */
INLINE float taught_experts(const float *x, const uint8_t *right, float *t, int64_t experts, int64_t who) {
    for (int64_t j = 0; j < experts; j++) t[j] = who == VANILLA ? right[j] : 0;
    if (who == VANILLA) return 0;
    int64_t best = best_expert(x, right, experts, who == PICE);
    if (best < 0 || !right[best]) return 0;
    if (who != SOFT_PICCE) {
        t[best] = 1;
        return 0;
    }
    float highest = x[best];
    double sum = 0, along = 0;
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

typedef struct {
    const float *scores;
    const int64_t *labels;
    const void *answers;
    float *gradient;
    double *losses;
    int64_t stride, bytes, rows, classes, experts, who, base, earned;
    float q, weight, cost;
    volatile int failed;
} Batch;

/* Whether the experts who gave these answers are right, or have not answered; how many have. */
#define READ(integer)                                                                                                  \
    {                                                                                                                  \
        const integer *said = (const integer *)batch->answers + i * experts, same = (integer)label;                    \
        int32_t known = same == label, some = 0;                                                                       \
        for (int64_t j = 0; j < experts; j++) {                                                                        \
            right[j] = known & (said[j] == same);                                                                      \
            missing[j] = said[j] < 0;                                                                                  \
        }                                                                                                              \
        for (int64_t j = 0; j < experts; j++) some += !missing[j];                                                     \
        given = some;                                                                                                  \
    }

FAST static void losses_of_rows(void *rows, int64_t begin, int64_t end) {
    Batch *batch = rows;
    int64_t classes = batch->classes, experts = batch->experts, n = classes + experts, who = batch->who, base = batch->base;
    float *x = malloc(2 * n * sizeof(float)), *t = x + n, scale = 1.0f / batch->rows, q = batch->q;
    uint8_t *right = malloc(2 * experts), *missing = right + experts;
    if (!x || !right) batch->failed = 1;
    for (int64_t i = begin; i < end && !batch->failed; i++) {
        const float *scores = batch->scores + i * batch->stride;
        float *gradient = batch->gradient + i * n;
        int64_t label = batch->labels[i], given;
        double loss = 0;
        if (label < 0 || label >= classes) {
            batch->failed = 1;
            break;
        }
        memcpy(x, scores, n * sizeof(float));
        if (batch->bytes == 1)
            READ(int8_t)
        else if (batch->bytes == 2)
            READ(int16_t)
        else
            READ(int64_t)
        if (given < experts)
            for (int64_t j = 0; j < experts; j++) x[classes + j] = missing[j] ? -1e30f : x[classes + j];
        for (int64_t c = 0; c < classes; c++) t[c] = batch->earned == EARNED_BY_ALL ? batch->cost : 0.0f;
        if (batch->earned == EARNED_BY_BEST) {
            float most = highest_of(x, classes);
            int64_t predicted = 0;
            while (predicted < classes - 1 && x[predicted] != most) predicted++;
            t[predicted] = batch->cost;
        }
        t[label] += 1.0f;
        float entropy = taught_experts(x + classes, right, t + classes, experts, who);
        float factor = batch->weight >= 0 ? batch->weight : 1.0f / (given > 0 ? given : 1);
        if (base <= POWER && factor != 1.0f) { /* undone in what the scores mean */
            float shift = logf(factor) / (1.0f - q);
            for (int64_t c = classes; c < n; c++) x[c] += shift, t[c] *= factor;
        }
        if (base == SOFTMAX)
            loss = softmax_row(x, t, gradient, n, scale);
        else if (base == POWER)
            loss = power_row(x, t, gradient, n, q, scale);
        else if (base == BINARY && factor == 1.0f)
            loss = binary_row(x, t, gradient, n, 0.0f, scale);
        else if (base == REALIZABLE)
            loss = realizable_row(x, t, gradient, n, q, scale);
        else if (base == ASYMMETRIC)
            loss = asymmetric_row(x, t, gradient, classes, experts, factor, scale);
        else {
            loss = base == BINARY ? binary_row(x, t, gradient, classes, 0.0f, scale)
                                  : softmax_row(x, t, gradient, classes, scale);
            loss += factor * binary_row(x + classes, t + classes, gradient + classes, experts, 0.0f, factor * scale);
        }
        batch->losses[i] = loss - factor * entropy;
        if (given < experts)
            for (int64_t j = 0; j < experts; j++) gradient[classes + j] = missing[j] ? 0.0f : gradient[classes + j];
    }
    free(x);
    free(right);
}

/* The mean loss of scores [rows, classes + experts] into *mean, and its gradient, which has the same shape. `answers` are integers of
`bytes` bytes, below 0 where there is none: such an expert takes no part. The experts' terms count `weight`, below 0: one unit for all who
answered. `cost` is added to what the classes are taught that earn it. */
int deferral_loss(const float *scores, int64_t stride, const int64_t *labels, const void *answers, int64_t bytes, float *gradient,
                  double *mean, int64_t rows, int64_t classes, int64_t experts, int64_t who, int64_t base, float q, float weight,
                  int64_t earned, float cost) {
    double *losses = malloc(rows * sizeof(double)), total = 0;
    Batch batch = {scores, labels, answers, gradient, losses, stride, bytes, rows, classes, experts,
                   who,    base,   earned,  q,        weight, cost,   0};
    batch.failed = !losses || classes < 2;
    /* an exponential takes as long as eight numbers that are copied */
    if (!batch.failed) in_parallel(losses_of_rows, &batch, rows, 8 * rows * (classes + experts));
    for (int64_t i = 0; i < rows && !batch.failed; i++) total += losses[i]; /* the same with any number of threads */
    free(losses);
    *mean = total / rows;
    return batch.failed;
}
