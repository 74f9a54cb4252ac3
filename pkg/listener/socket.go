package listener

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"
)

// Unix listens on a unix socket. What a dead process left there is removed; whatever else stands there is an error that says what it is.
func Unix(ctx context.Context, path string) (net.Listener, error) {
	if err := clear(ctx, path); err != nil {
		return nil, err
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listening on the socket: %w", err)
	}
	return l, nil
}

// clear removes a socket that nobody listens on.
func clear(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("looking at the socket: %w", err)
	case info.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("%s%s is there and is no socket (%s): remove it, or choose another path", path, owner(info), info.Mode())
	}
	d := net.Dialer{Timeout: time.Second}
	conn, err := d.DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		_ = conn.Close()
		return fmt.Errorf("another process listens on %s%s", path, owner(info))
	case !errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("whether somebody listens on %s%s cannot be told: %w", path, owner(info), err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("removing the dead socket %s%s: %w", path, owner(info), err)
	}
	return nil
}

// owner says whose a file is, where that is not the present user.
func owner(info fs.FileInfo) string {
	if s, ok := info.Sys().(*syscall.Stat_t); ok && int(s.Uid) != os.Getuid() {
		return fmt.Sprintf(", owned by user %d while this is user %d,", s.Uid, os.Getuid())
	}
	return ""
}
