/* What comes before a network: standardised vectors, crops of images. */

#include "common.h"

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
