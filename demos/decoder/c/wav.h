/* Audio from files in the format WAV. */
#ifndef WAV_H
#define WAV_H

typedef struct {
  float* samples; /* from -1 to 1 */
  int count, rate;
} Audio;

/* Reads 16-bit PCM of one channel; another format ends the program with a message. */
Audio read_wav(const char* path);

#endif
