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

/* Eight bytes to `to`, in the opposite order if they are mirrored, which compiles to one instruction. */
INLINE void copy_eight(uint8_t *to, const uint8_t *from, int mirrored) {
    uint64_t eight;
    memcpy(&eight, from, 8);
    if (mirrored) {
        eight = (eight >> 32) | (eight << 32);
        eight = ((eight & 0xFFFF0000FFFF0000u) >> 16) | ((eight & 0x0000FFFF0000FFFFu) << 16);
        eight = ((eight & 0xFF00FF00FF00FF00u) >> 8) | ((eight & 0x00FF00FF00FF00FFu) << 8);
    }
    memcpy(to, &eight, 8);
}

/* n bytes to `to`, in the opposite order if they are mirrored. */
INLINE void copy_run(uint8_t *restrict to, const uint8_t *restrict from, int64_t n, int mirrored) {
    int64_t last = n - 8; /* the last eight may overlap with those before */
    if (last < 0)
        for (int64_t i = 0; i < n; i++) to[i] = from[mirrored ? n - 1 - i : i];
    else if (mirrored) {
        for (int64_t i = 0; i < last; i += 8) copy_eight(to + i, from + last - i, 1);
        copy_eight(to + last, from, 1);
    } else {
        for (int64_t i = 0; i < last; i += 8) copy_eight(to + i, from + i, 0);
        copy_eight(to + last, from + last, 0);
    }
}

#define BLOCK 4096 /* bytes that are cropped at a time and stay in the caches */

/* `count` rows from row y on and `width` columns from column x on, of a plane [rows, columns] that is continued by reflection, to `block`;
each in the opposite order if they are mirrored. */
INLINE void copy_window(uint8_t *block, const uint8_t *plane, int64_t rows, int64_t columns, int64_t y, int64_t x, int64_t count,
                        int64_t width, int mirrored) {
    int64_t first = x < 0 ? -x : 0, last = columns - x < width ? columns - x : width; /* inside the image */
    for (int64_t r = 0; r < count; r++, block += width) {
        const uint8_t *from = plane + reflected(y + r, rows) * columns;
        copy_run(block + (mirrored ? width - last : first), from + x + first, last - first, mirrored);
        for (int64_t i = 0; i < first; i++) block[mirrored ? width - 1 - i : i] = from[reflected(x + i, columns)];
        for (int64_t i = last; i < width; i++) block[mirrored ? width - 1 - i : i] = from[reflected(x + i, columns)];
    }
}

typedef struct {
    const uint8_t *images;
    const int64_t *index, *top, *left, *mirrored;
    const float *scale, *shift;
    float *out;
    int64_t count, channels, rows, columns, height, width, padding;
} Windows;

/* The windows `begin` to `end` of those that cut_windows describes. */
FAST static void crop_some(void *windows, int64_t begin, int64_t end) {
    const Windows *w = windows;
    uint8_t block[BLOCK];
    int64_t plane = w->rows * w->columns, size = w->channels * plane, width = w->width, most = BLOCK / width;
    for (int64_t b = begin; b < end; b++) {
        const uint8_t *image = w->images + w->index[b] * size;
        if (b + 1 < end) /* the next one comes from anywhere in memory */
            for (int64_t i = 0; i < size && i < BLOCK; i += 64) PREFETCH(w->images + w->index[b + 1] * size + i);
        int64_t x = w->left[b] - w->padding, y = w->top[b] - w->padding;
        for (int64_t c = 0; c < w->channels; c++)
            for (int64_t done = 0; done < w->height; done += most) {
                int64_t some = w->height - done < most ? w->height - done : most, from = y + done;
                const uint8_t *bytes = image + c * plane;
                if (!w->mirrored[b] && x == 0 && width == w->columns && from >= 0 && from + some <= w->rows)
                    bytes += from * width; /* as they are */
                else {
                    if (w->mirrored[b])
                        copy_window(block, bytes, w->rows, w->columns, from, x, some, width, 1);
                    else
                        copy_window(block, bytes, w->rows, w->columns, from, x, some, width, 0);
                    bytes = block;
                }
                float *restrict floats = w->out + ((b * w->channels + c) * w->height + done) * width;
                float scale = w->scale[c], shift = w->shift[c];
                for (int64_t i = 0; i < some * width; i++) floats[i] = bytes[i] * scale + shift;
            }
    }
}

/* out [count, channels, height, width]: of images[index[b]] the window at (top[b], left[b]) of the image that is padded by
reflection, perhaps mirrored, each pixel times scale[c] plus shift[c]. Images are [num_images, channels, rows, columns]. `windows` are
index, top, left and mirrored in four rows `stride` apart, `affine` are scale and shift in two. */
int cut_windows(const uint8_t *images, int64_t num_images, const int64_t *windows, int64_t stride, const float *affine, float *out,
                int64_t count, int64_t channels, int64_t rows, int64_t columns, int64_t height, int64_t width, int64_t padding) {
    const int64_t *index = windows, *top = index + stride, *left = top + stride, *mirrored = left + stride;
    const float *scale = affine, *shift = affine + channels;
    Windows w = {images, index, top, left, mirrored, scale, shift, out, count, channels, rows, columns, height, width, padding};
    if (padding >= rows || padding >= columns || padding >= width || width > BLOCK) return 1;
    for (int64_t b = 0; b < count; b++)
        if (index[b] < 0 || index[b] >= num_images || top[b] < 0 || top[b] > rows + 2 * padding - height || left[b] < 0 ||
            left[b] > columns + 2 * padding - width)
            return 1;
    in_parallel(crop_some, &w, count, count * channels * height * width);
    return 0;
}
