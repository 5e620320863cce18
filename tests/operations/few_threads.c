// Lets a process have few threads: while the file $TIDEWIRE_TEST_THREADS exists, pthread_create fails with EAGAIN if the
// number in it is reached. Threads that have ended do not count.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static atomic_int running;

struct start {
	void *(*function)(void *);
	void *argument;
};

static int threads_max(void) {
	const char *path = getenv("TIDEWIRE_TEST_THREADS");
	FILE *file = path ? fopen(path, "r") : NULL;
	int most = 1 << 30;
	if (file) {
		if (fscanf(file, "%d", &most) != 1) {
			most = 0;
		}
		fclose(file);
	}
	return most;
}

static void *run(void *argument) {
	struct start start = *(struct start *)argument;
	free(argument);
	void *result = start.function(start.argument);
	atomic_fetch_sub(&running, 1);
	return result;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*function)(void *), void *argument) {
	int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
	if (atomic_fetch_add(&running, 1) >= threads_max()) {
		atomic_fetch_sub(&running, 1);
		return EAGAIN;
	}
	struct start *start = malloc(sizeof *start);
	*start = (struct start){function, argument};
	int error = next(thread, attributes, run, start);
	if (error) {
		atomic_fetch_sub(&running, 1);
		free(start);
	}
	return error;
}
