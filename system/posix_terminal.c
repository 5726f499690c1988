#include "system/terminal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

// ---- what stdin, stdout and stderr are ----

bool is_terminal(FILE *stream) { return isatty(fileno(stream)); }

bool is_screen(FILE *stream) {
    const char *kind = getenv("TERM");
    return is_terminal(stream) && kind && *kind && strcmp(kind, "dumb") != 0;
}

bool same_output(void) {
    struct stat out, err;
    bool known = fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0;
    return known && out.st_dev == err.st_dev && out.st_ino == err.st_ino;
}

bool reader_has_gone(int error) {
    struct pollfd out = {.fd = STDOUT_FILENO};
    return error ? error == EPIPE : poll(&out, 1, 0) == 1 && out.revents & POLLERR;
}

bool input_waits(int milliseconds) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&in, 1, milliseconds) > 0;
}

static struct winsize window(FILE *stream) {
    struct winsize size;
    return ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 ? size : (struct winsize){0};
}

int terminal_columns(FILE *stream) { return window(stream).ws_col; }

int terminal_rows(FILE *stream) { return window(stream).ws_row; }

// ---- mode ----

static struct termios old_mode;
static volatile sig_atomic_t raw, times_set;

static void say(const char *text) {
    if (write(STDOUT_FILENO, text, strlen(text)) < 0) return;  // nobody is left to be told
}

// In the background this would stop the process.
static void set_raw(void) {
    pid_t group = tcgetpgrp(STDIN_FILENO);
    raw = group < 0 || group == getpgrp();
    if (!raw) return;
    struct termios mode = old_mode;
    mode.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IGNCR | ISTRIP | IXON);
    mode.c_lflag &= ~(tcflag_t)(ICANON | ECHO | IEXTEN);
    mode.c_cc[VMIN] = 0;  // a read takes what there is: Ctrl-C may have taken back what poll saw
    mode.c_cc[VTIME] = 0;
    times_set++;
    tcsetattr(STDIN_FILENO, TCSANOW, &mode);
    say("\033[?2004h");  // pastes come between marks
}

void terminal_restore(void) {
    if (!raw) return;
    raw = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &old_mode);
    say("\033[m\033[?2004l");
}

int terminal_resumed(void) { return times_set; }

// ---- signals: those that end the process, stop it, and let it go on ----

static const int FATAL[] = {SIGHUP,  SIGQUIT, SIGILL,  SIGTRAP,   SIGABRT, SIGBUS,  SIGFPE,
                            SIGUSR1, SIGSEGV, SIGUSR2, SIGALRM,   SIGTERM, SIGXCPU, SIGVTALRM,
                            SIGPROF, SIGIO,   SIGSYS};
enum { N_FATAL = sizeof FATAL / sizeof FATAL[0] };
static struct sigaction old_actions[N_FATAL];

// What was to happen before happens now. A fault comes again from its instruction, which tells the
// next handler where.
static void on_fatal(int number, siginfo_t *info, void *context) {
    bool faults = number == SIGSEGV || number == SIGBUS || number == SIGFPE || number == SIGILL;
    terminal_restore();
    for (int i = 0; i < N_FATAL; i++)
        if (FATAL[i] == number) sigaction(number, &old_actions[i], NULL);
    if (!faults || info->si_code <= 0) raise(number);
}

static void catch_stop(void);

static void on_stop(int number) {
    int error = errno;
    terminal_restore();
    signal(SIGTSTP, SIG_DFL);
    raise(SIGTSTP);  // returns when the process goes on
    catch_stop();
    errno = error;
}

static void on_continue(int number) {
    int error = errno;
    set_raw();
    errno = error;
}

static void catch_stop(void) {
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART | SA_NODEFER};
    sigaction(SIGTSTP, &stop, NULL);
}

static void catch_all(void) {
    struct sigaction end = {.sa_sigaction = on_fatal, .sa_flags = SA_SIGINFO};
    struct sigaction on = {.sa_handler = on_continue, .sa_flags = SA_RESTART}, old;
    for (int i = 0; i < N_FATAL; i++) {
        sigaction(FATAL[i], NULL, &old_actions[i]);
        if (old_actions[i].sa_handler != SIG_IGN) sigaction(FATAL[i], &end, NULL);
    }
    sigaction(SIGCONT, &on, NULL);
    sigaction(SIGTSTP, NULL, &old);
    if (old.sa_handler == SIG_DFL) catch_stop();
}

bool terminal_raw(void) {
    if (tcgetattr(STDIN_FILENO, &old_mode) != 0) return false;
    atexit(terminal_restore);
    catch_all();
    set_raw();
    return true;
}

// ---- keys ----

static bool hung_up(void) {
    struct pollfd in = {.fd = STDIN_FILENO};
    return poll(&in, 1, 0) == 1;
}

int terminal_read(char *keys, size_t size, int milliseconds) {
    if (!raw) set_raw();
    if (!input_waits(milliseconds)) return 0;
    ssize_t n = read(STDIN_FILENO, keys, size);
    if (n > 0) return (int)n;
    if (n == 0) return raw && !hung_up() ? 0 : -1;
    return errno == EINTR || errno == EAGAIN ? 0 : -1;
}
