#include "system/process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "system/posix.h"

// ---- descriptors ----

#ifndef O_PATH
#define O_PATH O_RDONLY
#endif

// Opens what can neither be read nor written where 0, 1 or 2 is closed.
static void fill_standard_files(void) {
    int fd = STDIN_FILENO;
    while (fd >= 0 && fd <= STDERR_FILENO) fd = open("/", O_PATH);
    if (fd >= 0) close(fd);
}

// ---- signals that end the program ----

static void on_end(int number) {
    newfile_remove_temporaries();
    raise(number);        // SA_RESETHAND, SA_NODEFER: this one ends the program,
    _exit(128 + number);  // except for a container's first process
}

static void end_on(int number) {
    struct sigaction end = {.sa_handler = on_end, .sa_flags = (int)(SA_RESETHAND | SA_NODEFER)};
    sigaction(number, &end, NULL);
}

static bool is_ignored(int number) {
    struct sigaction now;
    return sigaction(number, NULL, &now) == 0 && now.sa_handler == SIG_IGN;
}

// ---- Ctrl-C that ends the work ----

volatile int interrupted;
static bool ends_next;  // another Ctrl-C ends the program

static void on_interrupt(int number) {
    interrupted = 1;
    if (ends_next) end_on(number);
}

void interrupt_reads(bool on) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = on ? 0 : SA_RESTART};
    if (!is_ignored(SIGINT)) sigaction(SIGINT, &action, NULL);
}

void catch_interrupt(bool ends) {
    ends_next = ends;
    interrupt_reads(false);
}

// ---- a mapped file that lost its end ----

static const char *program;  // its name

static void say(const char *text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) _exit(1);
}

static struct sigaction default_bus_error;  // a sanitizer's, which knows more, or none

static void on_bus_error(int number, siginfo_t *info, void *context) {
    static char line[PATH_MAX + 128];
    const char *path = mapped_path(info->si_addr, line, sizeof line);
    newfile_remove_temporaries();
    if (!path) {  // no mapped file: the instruction runs again and ends the program
        sigaction(number, &default_bus_error, NULL);
        return;
    }
    bool memory = strncmp(path, "/memfd:", 7) == 0;
    say("\n");
    say(program);
    say(": ");
    say(memory ? "the machine has no memory left for the KV cache" : path);
    say(memory ? "; give it less context (-c) or smaller types (-ctk, -ctv)\n"
               : " was cut short, or its disk failed, while it was in use; run again with the "
                 "whole file\n");
    _exit(1);
}

char **prepare_process(const char *name, int *argc, char **argv) {
    static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGXCPU};
    enum { N_ENDS = sizeof ends / sizeof *ends };
    program = name;
    fill_standard_files();
    signal(SIGPIPE, SIG_IGN);  // write says so as well
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < N_ENDS; i++)
        if (!is_ignored(ends[i])) end_on(ends[i]);
    struct sigaction bus = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &bus, &default_bus_error);
    return argv;
}

// ---- another program ----

const char PYTHON[] = "python3";
extern char **environ;

// Reads to the end, and keeps what there is room for.
static void read_all(int fd, char *out, size_t size) {
    char more[256];
    size_t used = 0;
    for (ssize_t n; (n = read(fd, more, sizeof more)) > 0 || (n < 0 && errno == EINTR);) {
        size_t kept = n < 0 ? 0 : (size_t)n < size - 1 - used ? (size_t)n : size - 1 - used;
        memcpy(out + used, more, kept);
        used += kept;
    }
    out[used] = 0;
}

// The signals that this program ignores or handles are as usual there.
static int spawn(pid_t *child, const char *const *argv, int stdout_fd) {
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    sigset_t usual;
    sigemptyset(&usual);
    sigaddset(&usual, SIGPIPE);
    sigaddset(&usual, SIGXFSZ);
    if (posix_spawn_file_actions_init(&files)) return ENOMEM;
    if (posix_spawnattr_init(&attributes)) return posix_spawn_file_actions_destroy(&files), ENOMEM;
    posix_spawn_file_actions_adddup2(&files, stdout_fd, STDOUT_FILENO);
    posix_spawnattr_setsigdefault(&attributes, &usual);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    int status = posix_spawnp(child, argv[0], &files, &attributes, (char *const *)(uintptr_t)argv,
                              environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return status;
}

int run_command(const char *const *argv, char *out, size_t size) {
    int ends[2], status;
    pid_t child;
    out[0] = 0;
    if (pipe(ends)) return -1;
    for (int i = 0; i < 2; i++) fcntl(ends[i], F_SETFD, FD_CLOEXEC);
    int failed = spawn(&child, argv, ends[1]);
    close(ends[1]);
    if (!failed) read_all(ends[0], out, size);
    close(ends[0]);
    if (failed) return errno = failed, -1;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) return -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
