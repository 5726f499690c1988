// system.h for Windows: files, memory, cores, the clock.
#include "system/windows.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "system/temporaries.h"

int write_plain(char *text, size_t size, const char *format, va_list args) {
    int before = _configthreadlocale(_ENABLE_PER_THREAD_LOCALE);
    const char *now = setlocale(LC_ALL, NULL);
    char *hosts = now ? _strdup(now) : NULL;
    setlocale(LC_ALL, "C");
    int length = vsnprintf(text, size, format, args);
    if (hosts) setlocale(LC_ALL, hosts);
    free(hosts);
    _configthreadlocale(before);
    return length;
}

// ---- errors ----

// Sets errno by the last error of Windows; returns -1.
static int set_errno(void) {
    static const struct {
        DWORD error;
        int number;
    } numbers[] = {
        {ERROR_FILE_NOT_FOUND, ENOENT}, {ERROR_PATH_NOT_FOUND, ENOENT},
        {ERROR_INVALID_NAME, ENOENT}, {ERROR_BAD_PATHNAME, ENOENT}, {ERROR_BAD_NETPATH, ENOENT},
        {ERROR_INVALID_DRIVE, ENOENT}, {ERROR_DIRECTORY, ENOTDIR}, {ERROR_ACCESS_DENIED, EACCES},
        {ERROR_WRITE_PROTECT, EROFS}, {ERROR_SHARING_VIOLATION, EBUSY},
        {ERROR_LOCK_VIOLATION, EWOULDBLOCK}, {ERROR_USER_MAPPED_FILE, EBUSY},
        {ERROR_FILE_EXISTS, EEXIST}, {ERROR_ALREADY_EXISTS, EEXIST},
        {ERROR_DISK_FULL, ENOSPC}, {ERROR_HANDLE_DISK_FULL, ENOSPC},
        {ERROR_FILENAME_EXCED_RANGE, ENAMETOOLONG}, {ERROR_TOO_MANY_OPEN_FILES, EMFILE},
        {ERROR_NOT_ENOUGH_MEMORY, ENOMEM}, {ERROR_OUTOFMEMORY, ENOMEM},
        {ERROR_COMMITMENT_LIMIT, ENOMEM}, {ERROR_NO_DATA, EPIPE}, {ERROR_BROKEN_PIPE, EPIPE},
        {ERROR_PIPE_NOT_CONNECTED, EPIPE},
        {ERROR_INVALID_PARAMETER, EINVAL},
    };
    DWORD error = GetLastError();
    errno = EIO;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (numbers[i].error == error) errno = numbers[i].number;
    return -1;
}

static const char *reason_of(int number) {
    return number == EBUSY ? "a program has it open" : strerror(number);
}

const char *system_reason(void) { return reason_of(errno); }

// ---- paths ----

wchar_t *wide(const char *text) {
    int n = MultiByteToWideChar(CP_UTF8, MB_ERR_INVALID_CHARS, text, -1, NULL, 0);
    wchar_t *to = n > 0 ? malloc((size_t)n * sizeof *to) : NULL;
    if (to) MultiByteToWideChar(CP_UTF8, 0, text, -1, to, n);
    else errno = n > 0 ? ENOMEM : ENOENT;
    return to;
}

char *narrow(const wchar_t *text) {
    int n = WideCharToMultiByte(CP_UTF8, 0, text, -1, NULL, 0, NULL, NULL);
    char *to = n > 0 ? malloc((size_t)n) : NULL;
    if (to) WideCharToMultiByte(CP_UTF8, 0, text, -1, to, n, NULL, NULL);
    else errno = ENOMEM;
    return to;
}

// The path from the root, behind the mark of paths that have any length.
static wchar_t *long_path(const wchar_t *path) {
    static const wchar_t mark[] = L"\\\\?\\", network[] = L"\\\\?\\UNC\\";
    DWORD n = GetFullPathNameW(path, 0, NULL, NULL);
    wchar_t *full = n ? malloc(n * sizeof *full) : NULL;
    wchar_t *to = full ? malloc(n * sizeof *to + sizeof network) : NULL;
    if (to && GetFullPathNameW(path, n, full, NULL) < n) {
        bool marked = wcsncmp(full, mark, 4) == 0, shared = wcsncmp(full, L"\\\\", 2) == 0;
        wcscpy(to, marked ? L"" : shared ? network : mark);
        wcscat(to, shared && !marked ? full + 2 : full);
    } else {
        free(to);
        to = NULL;
        errno = n ? ENOMEM : ENOENT;
    }
    free(full);
    return to;
}

enum { LONGEST_NAME = 255, ENDING = 48 };  // of a temporary name, with its zero

wchar_t *wide_path(const char *path) {
    enum { SHORT = MAX_PATH - ENDING };  // so a temporary file beside it is short enough, too
    wchar_t *plain = wide(path);
    if (!plain || GetFullPathNameW(plain, 0, NULL, NULL) < SHORT) return plain;
    wchar_t *to = long_path(plain);
    free(plain);
    return to;
}

const char *base_name(const char *path) {
    const char *name = path;
    for (const char *c = path; *c; c++)
        if ((*c == '/' || *c == '\\') && c[1]) name = c + 1;
    return name;
}

// ---- files ----

// INVALID_HANDLE_VALUE: errno. Whoever has the file open may go on, and others may rename it.
static HANDLE open_wide(const wchar_t *path, DWORD access, DWORD how) {
    DWORD share = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    HANDLE file = CreateFileW(path, access, share, NULL, how, FILE_FLAG_BACKUP_SEMANTICS, NULL);
    if (file == INVALID_HANDLE_VALUE) set_errno();
    return file;
}

static HANDLE open_file(const char *path, DWORD access, DWORD how) {
    wchar_t *name = wide_path(path);
    HANDLE file = name ? open_wide(name, access, how) : INVALID_HANDLE_VALUE;
    free(name);
    return file;
}

typedef enum { NO_FILE, REGULAR, FOLDER, DEVICE } FileKind;  // DEVICE: or a pipe

static FileKind kind_of(HANDLE file) {
    BY_HANDLE_FILE_INFORMATION about;
    if (file == INVALID_HANDLE_VALUE) return NO_FILE;
    if (GetFileType(file) != FILE_TYPE_DISK || !GetFileInformationByHandle(file, &about))
        return DEVICE;
    return about.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY ? FOLDER : REGULAR;
}

static FileKind kind_at(const wchar_t *path) {
    HANDLE file = path ? open_wide(path, 0, OPEN_EXISTING) : INVALID_HANDLE_VALUE;
    FileKind kind = kind_of(file);
    if (kind != NO_FILE) CloseHandle(file);
    return kind;
}

static FileKind kind_of_path(const char *path) {
    wchar_t *name = wide_path(path);
    FileKind kind = kind_at(name);
    free(name);
    return kind;
}

bool is_regular(const char *path) { return kind_of_path(path) == REGULAR; }
bool is_folder(const char *path) { return kind_of_path(path) == FOLDER; }

bool is_missing(const char *path) {
    HANDLE file = open_file(path, 0, OPEN_EXISTING);
    if (file != INVALID_HANDLE_VALUE) CloseHandle(file);
    return file == INVALID_HANDLE_VALUE && errno == ENOENT;
}

bool same_file(const char *a, const char *b) {
    HANDLE x = open_file(a, 0, OPEN_EXISTING), y = open_file(b, 0, OPEN_EXISTING);
    BY_HANDLE_FILE_INFORMATION p, q;
    bool same = kind_of(x) == REGULAR && kind_of(y) == REGULAR &&
                GetFileInformationByHandle(x, &p) && GetFileInformationByHandle(y, &q) &&
                p.dwVolumeSerialNumber == q.dwVolumeSerialNumber &&
                p.nFileIndexHigh == q.nFileIndexHigh && p.nFileIndexLow == q.nFileIndexLow;
    if (x != INVALID_HANDLE_VALUE) CloseHandle(x);
    if (y != INVALID_HANDLE_VALUE) CloseHandle(y);
    return same;
}

// A stream that owns the handle; NULL: errno, and the handle is closed.
static FILE *stream_of(HANDLE file, int flags, const char *mode) {
    int fd = file == INVALID_HANDLE_VALUE ? -1 : _open_osfhandle((intptr_t)file, flags);
    FILE *stream = fd >= 0 ? _fdopen(fd, mode) : NULL;
    int reason = errno;
    if (fd >= 0 && !stream) _close(fd);
    if (fd < 0 && file != INVALID_HANDLE_VALUE) CloseHandle(file);
    errno = reason;
    return stream;
}

FILE *open_to_read(const char *path) {
    HANDLE file = open_file(path, GENERIC_READ, OPEN_EXISTING);
    if (kind_of(file) == FOLDER) {  // where other systems fail to read
        CloseHandle(file);
        errno = EISDIR;
        return NULL;
    }
    return stream_of(file, _O_RDONLY | _O_BINARY, "rb");
}

int seek_to(FILE *stream, uint64_t offset) { return _fseeki64(stream, (int64_t)offset, SEEK_SET); }

static int map_open_file(Mapping *map, HANDLE file, const char *path, Error *err) {
    LARGE_INTEGER size;
    FileKind kind = kind_of(file);
    if (kind == FOLDER)
        return fail(err, "%s is a directory; name a file (export.py makes one of a checkpoint)",
                    path);
    if (kind != REGULAR)
        return fail(err, "%s is no regular file, so it cannot be mapped; copy it to one", path);
    bool known = GetFileSizeEx(file, &size);
    if (known && size.QuadPart == 0) return fail(err, "%s: it is empty", path);
    HANDLE section = known ? CreateFileMappingW(file, NULL, PAGE_READONLY, 0, 0, NULL) : NULL;
    void *data = section ? MapViewOfFile(section, FILE_MAP_READ, 0, 0, 0) : NULL;
    if (!data) set_errno();
    if (section) CloseHandle(section);
    if (!data) return fail(err, "cannot map %s: %s", path, reason_of(errno));
    *map = (Mapping){data, (size_t)size.QuadPart};
    return 0;
}

int map_file(Mapping *map, const char *path, Error *err) {
    HANDLE file = open_file(path, GENERIC_READ, OPEN_EXISTING);
    if (file == INVALID_HANDLE_VALUE)
        return fail(err, "cannot open %s: %s", path, reason_of(errno));
    int status = map_open_file(map, file, path, err);
    CloseHandle(file);
    return status;
}

int map_file_shared(Mapping *map, const char *path, int *fd, Error *err) {
    *fd = -1;
    return map_file(map, path, err);
}

void close_file(int fd) {}

void unmap_file(Mapping *map) {
    if (map->data) UnmapViewOfFile(map->data);
    *map = (Mapping){0};
}

int check_file_size(const char *path, size_t bytes, Error *err) { return 0; }

// ---- new files ----

struct NewFile {
    FILE *stream;
    wchar_t *path;       // where links lead
    wchar_t *temporary;  // NULL: written directly
    char *name, *temporary_name;  // the same in UTF-8
};

void remove_temporary(const NewFile *file) { DeleteFileW(file->temporary); }

// Where a link leads; `path` itself, if it is none or leads nowhere. Frees path.
static wchar_t *follow_links(wchar_t *path) {
    DWORD is = GetFileAttributesW(path);
    if (is == INVALID_FILE_ATTRIBUTES || !(is & FILE_ATTRIBUTE_REPARSE_POINT)) return path;
    HANDLE file = open_wide(path, 0, OPEN_EXISTING);
    if (file == INVALID_HANDLE_VALUE) return path;
    DWORD n = GetFinalPathNameByHandleW(file, NULL, 0, 0);
    wchar_t *target = n ? malloc(n * sizeof *target) : NULL;
    bool found = target && GetFinalPathNameByHandleW(file, target, n, 0) < n;
    CloseHandle(file);
    free(found ? path : target);
    return found ? target : path;
}

// A name beside the path's, which no other process has: of its number and the time it began.
static wchar_t *temporary_path(const wchar_t *path) {
    FILETIME began = {0}, other;
    const wchar_t *name = path;
    for (const wchar_t *c = path; *c; c++)
        if (*c == L'/' || *c == L'\\') name = c + 1;
    size_t most = (size_t)(name - path) + LONGEST_NAME - ENDING, n = wcslen(path);
    if (n > most) n = most;
    wchar_t *to = malloc((n + ENDING) * sizeof *to);
    if (!to) return NULL;
    GetProcessTimes(GetCurrentProcess(), &began, &other, &other, &other);
    swprintf(to, n + ENDING, L"%.*ls.%lu-%lx%08lx.tmp", (int)n, path, GetCurrentProcessId(),
             began.dwHighDateTime, began.dwLowDateTime);
    return to;
}

static FILE *open_temporary(NewFile *file) {
    file->temporary = temporary_path(file->path);
    file->temporary_name = file->temporary ? narrow(file->temporary) : NULL;
    if (!file->temporary_name) {
        errno = ENOMEM;
        return NULL;
    }
    list_temporary(NULL, file);
    HANDLE made = open_wide(file->temporary, GENERIC_WRITE | DELETE, CREATE_NEW);
    FILE *stream = stream_of(made, _O_BINARY, "wb");
    int reason = errno;
    if (!stream) list_temporary(file, NULL);
    if (!stream && made != INVALID_HANDLE_VALUE) DeleteFileW(file->temporary);
    errno = reason;
    return stream;
}

static void free_newfile(NewFile *file) {
    if (!file) return;
    free(file->path);
    free(file->temporary);
    free(file->name);
    free(file->temporary_name);
    free(file);
}

static void open_new(NewFile *file, const char *path) {
    wchar_t *given = wide_path(path);
    file->name = _strdup(path);
    file->path = given ? follow_links(given) : NULL;
    if (!file->path || !file->name) return;
    FileKind kind = kind_at(file->path);
    if (kind == FOLDER) errno = EISDIR;
    else if (kind == DEVICE)
        file->stream = stream_of(open_wide(file->path, GENERIC_WRITE, OPEN_EXISTING), _O_BINARY,
                                 "wb");
    else file->stream = open_temporary(file);
}

NewFile *newfile_open(const char *path, Error *err) {
    NewFile *file = calloc(1, sizeof *file);
    if (file) open_new(file, path);
    if (file && file->stream) return file;
    int reason = errno;
    free_newfile(file);
    fail(err, "cannot write %s: %s", path, reason_of(reason));
    errno = reason;
    return NULL;
}

FILE *newfile_stream(const NewFile *file) { return file->stream; }

const char *newfile_temporary(const NewFile *file) {
    return file->temporary_name ? file->temporary_name : "";
}

// Gives the file its name. Nobody may have the old one open; who reads it, such as a scanner or
// another of us, is soon done.
static bool replace_old(const NewFile *file) {
    enum { TRIES = 50, MILLISECONDS = 20 };
    DWORD how = MOVEFILE_REPLACE_EXISTING | MOVEFILE_WRITE_THROUGH;
    for (int i = 1; !MoveFileExW(file->temporary, file->path, how); i++) {
        set_errno();
        if ((errno != EACCES && errno != EBUSY) || i == TRIES) return false;
        Sleep(MILLISECONDS);
    }
    return true;
}

int newfile_close(NewFile *file, int status, Error *err) {
    bool renamed = file->temporary, ok = !status && fflush(file->stream) == 0;
    ok = ok && !ferror(file->stream) && (!renamed || _commit(_fileno(file->stream)) == 0);
    int reason = errno;
    const char *why = NULL;
    if (fclose(file->stream) != 0 && ok) ok = false, reason = errno;
    if (ok && renamed && !replace_old(file)) {
        ok = false, reason = errno;
        if (reason == EACCES) why = "it may not be written, or a program has it open";
    }
    if (!ok && renamed) DeleteFileW(file->temporary);
    list_temporary(file, NULL);
    if (!ok) fail(err, "cannot write %s: %s", file->name, why ? why : reason_of(reason));
    free_newfile(file);
    return ok ? 0 : -1;
}

// ---- a file that grows ----

struct GrownFile {
    HANDLE handle;
    bool regular;
};

// Locks a byte beyond any file's end. Windows would not let others read a byte that is locked.
static bool lock(HANDLE file) {
    OVERLAPPED at = {.OffsetHigh = 1u << 30};
    return LockFileEx(file, LOCKFILE_EXCLUSIVE_LOCK | LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &at) ||
           GetLastError() != ERROR_LOCK_VIOLATION;
}

GrownFile *grown_open(const char *path, bool own) {
    GrownFile *file = calloc(1, sizeof *file);
    wchar_t *name = wide_path(path);
    FileKind kind = kind_at(name);
    if (file) file->handle = INVALID_HANDLE_VALUE;
    if (kind == FOLDER) errno = EISDIR;
    else if (file && name) {
        file->regular = kind != DEVICE;
        file->handle = open_wide(name, GENERIC_WRITE, file->regular ? OPEN_ALWAYS : OPEN_EXISTING);
    }
    free(name);
    bool opened = file && file->handle != INVALID_HANDLE_VALUE;
    bool locked = opened && (!file->regular || lock(file->handle));
    LARGE_INTEGER end = {0};
    if (locked && (!file->regular || SetFilePointerEx(file->handle, end, NULL, FILE_END)))
        return file;
    if (opened && !locked) errno = EWOULDBLOCK;
    else if (opened) set_errno();
    if (opened) CloseHandle(file->handle);
    free(file);
    return NULL;
}

bool grown_regular(const GrownFile *file) { return file->regular; }

int grown_cut(GrownFile *file, size_t bytes) {
    LARGE_INTEGER end = {.QuadPart = (LONGLONG)bytes};
    bool cut = SetFilePointerEx(file->handle, end, NULL, FILE_BEGIN) && SetEndOfFile(file->handle);
    return cut ? 0 : set_errno();
}

int grown_write(GrownFile *file, const char *data, size_t size) {
    enum { AT_ONCE = 1 << 30 };
    for (DWORD written; size > 0; data += written, size -= written)
        if (!WriteFile(file->handle, data, size < AT_ONCE ? (DWORD)size : AT_ONCE, &written, NULL))
            return set_errno();
    return 0;
}

int grown_sync(GrownFile *file) { return FlushFileBuffers(file->handle) ? 0 : set_errno(); }

int grown_close(GrownFile *file) {
    int status = CloseHandle(file->handle) ? 0 : set_errno();
    free(file);
    return status;
}

// ---- memory ----

static SYSTEM_INFO system_info(void) {
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info;
}

size_t page_size(void) { return system_info().dwPageSize; }

static void *allocate_pages(void *at, size_t bytes, DWORD how) {
    void *memory = VirtualAlloc(at, bytes, how, PAGE_READWRITE);
    if (!memory) set_errno();
    return memory;
}

void *reserve(size_t bytes) { return allocate_pages(NULL, bytes, MEM_RESERVE | MEM_COMMIT); }
void *reserve_addresses(size_t bytes) { return allocate_pages(NULL, bytes, MEM_RESERVE); }

int commit(void *memory, size_t bytes) {
    return bytes == 0 || allocate_pages(memory, bytes, MEM_COMMIT) ? 0 : -1;
}

void release(void *memory, size_t bytes) {
    if (memory) VirtualFree(memory, 0, MEM_RELEASE);
}

// Pages that are committed again are zeros, and take no memory before they are written to.
void discard(void *memory, size_t bytes) {
    size_t page = page_size(), skip = (page - (uintptr_t)memory % page) % page;
    if (bytes < skip + page) return;
    uint8_t *from = (uint8_t *)memory + skip, *end = from + (bytes - skip) / page * page;
    MEMORY_BASIC_INFORMATION about;
    for (; from < end && VirtualQuery(from, &about, sizeof about); from += about.RegionSize) {
        if (about.RegionSize > (size_t)(end - from)) about.RegionSize = (size_t)(end - from);
        if (about.State != MEM_COMMIT) continue;
        if (!VirtualFree(from, about.RegionSize, MEM_DECOMMIT) || commit(from, about.RegionSize))
            memset(from, 0, about.RegionSize);
    }
}

bool has_map_private(void) { return false; }
void *reserve_shared(size_t bytes, int *fd) { return NULL; }
int map_private(void *memory, size_t bytes, int fd, size_t offset) { return -1; }
void populate(const void *memory, size_t bytes) {}

size_t resident_bytes(const void *memory, size_t bytes) {
    enum { AT_ONCE = 512 };
    PSAPI_WORKING_SET_EX_INFORMATION pages[AT_ONCE];
    size_t page = page_size(), n_pages = (bytes + page - 1) / page, n = 0, some;
    for (size_t first = 0; first < n_pages; first += some) {
        some = n_pages - first < AT_ONCE ? n_pages - first : AT_ONCE;
        for (size_t i = 0; i < some; i++)
            pages[i].VirtualAddress = (uint8_t *)memory + (first + i) * page;
        if (!K32QueryWorkingSetEx(GetCurrentProcess(), pages, (DWORD)(some * sizeof *pages)))
            return 0;
        for (size_t i = 0; i < some; i++) n += pages[i].VirtualAttributes.Valid;
    }
    return n * page;
}

size_t free_memory(void) {
    MEMORYSTATUSEX memory = {.dwLength = sizeof memory};
    return GlobalMemoryStatusEx(&memory) ? (size_t)memory.ullAvailPhys : 0;
}

// ---- the machine ----

typedef SYSTEM_LOGICAL_PROCESSOR_INFORMATION Unit;  // a core, a cache, ..

// All of the machine, malloc'd; NULL: it does not say.
static Unit *units(size_t *n) {
    DWORD bytes = 0;
    GetLogicalProcessorInformation(NULL, &bytes);
    Unit *found = malloc(bytes ? bytes : 1);
    if (found && !GetLogicalProcessorInformation(found, &bytes)) bytes = 0;
    *n = found ? bytes / sizeof *found : 0;
    return found;
}

int usable_cores(void) {
    DWORD_PTR allowed = 0, all;
    size_t n;
    int cores = 0;
    Unit *u = units(&n);
    GetProcessAffinityMask(GetCurrentProcess(), &allowed, &all);
    for (size_t i = 0; i < n; i++)
        cores += u[i].Relationship == RelationProcessorCore && u[i].ProcessorMask & allowed;
    free(u);
    return cores ? cores : (int)system_info().dwNumberOfProcessors;
}

size_t last_level_cache(void) {
    size_t n, bytes = 0;
    Unit *u = units(&n);
    for (size_t i = 0; i < n; i++)
        if (u[i].Relationship == RelationCache && u[i].Cache.Size > bytes) bytes = u[i].Cache.Size;
    free(u);
    return bytes;
}

double seconds(void) {
    LARGE_INTEGER now, per_second;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&per_second);
    return (double)now.QuadPart / (double)per_second.QuadPart;
}

double busy_time(void) {
    ULONG64 cycles = 0;
    QueryThreadCycleTime(GetCurrentThread(), &cycles);
    return (double)cycles;
}

// Microseconds from 1970 to a time that Windows counts from 1601.
static uint64_t microseconds_of(FILETIME t) {
    const uint64_t before_1970 = 11644473600000000;
    return ((uint64_t)t.dwHighDateTime << 32 | t.dwLowDateTime) / 10 - before_1970;
}

uint64_t clock_microseconds(void) {
    FILETIME now;
    GetSystemTimePreciseAsFileTime(&now);
    return microseconds_of(now);
}

int64_t local_clock(void) {
    SYSTEMTIME local;
    FILETIME time = {0};
    GetLocalTime(&local);
    SystemTimeToFileTime(&local, &time);
    return (int64_t)(microseconds_of(time) / 1000000);
}

bool may_use_tiles(void) { return false; }  // Windows gives them from version 11 on, if asked
bool saves_avx512_later(void) { return false; }
int has_neon_dot(void) { return IsProcessorFeaturePresent(PF_ARM_V82_DP_INSTRUCTIONS_AVAILABLE); }
