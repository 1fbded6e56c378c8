#include "wav.h"

#include <string.h>

#include "common.h"

static uint32_t little_endian(const unsigned char* bytes, int count) {
  uint32_t value = 0;
  for (int i = count - 1; i >= 0; --i) value = value << 8 | bytes[i];
  return value;
}

static void read_exactly(FILE* file, void* into, size_t bytes, const char* path) {
  if (fread(into, 1, bytes, file) != bytes) FAIL("%s: the file ends too early", path);
}

Audio read_wav(const char* path) {
  Audio audio = {NULL, 0, 0};
  unsigned char head[12], format[16];
  FILE* file = fopen(path, "rb");
  if (file == NULL) FAIL("%s: cannot be opened", path);
  read_exactly(file, head, sizeof(head), path);
  if (memcmp(head, "RIFF", 4) != 0 || memcmp(head + 8, "WAVE", 4) != 0) FAIL("%s: not a WAV file", path);
  while (audio.samples == NULL) {
    read_exactly(file, head, 8, path);
    const uint32_t size = little_endian(head + 4, 4);
    if (memcmp(head, "fmt ", 4) == 0 && size >= sizeof(format)) {
      read_exactly(file, format, sizeof(format), path);
      if (little_endian(format, 2) != 1 || little_endian(format + 2, 2) != 1 || little_endian(format + 14, 2) != 16) {
        FAIL("%s: not 16-bit PCM of one channel", path);
      }
      audio.rate = little_endian(format + 4, 4);
      fseek(file, (size - sizeof(format)) + size % 2, SEEK_CUR);
    } else if (memcmp(head, "data", 4) == 0) {
      if (audio.rate == 0) FAIL("%s: samples before their format", path);
      unsigned char* bytes = allocate(size);
      read_exactly(file, bytes, size, path);
      audio.count = size / 2;
      audio.samples = allocate(audio.count * sizeof(float));
      for (int i = 0; i < audio.count; ++i) {
        audio.samples[i] = (int16_t)little_endian(bytes + 2 * i, 2) / 32768.0f;
      }
      free(bytes);
    } else if (fseek(file, (long)size + size % 2, SEEK_CUR) != 0) {
      FAIL("%s: damaged", path);
    }
  }
  fclose(file);
  return audio;
}
