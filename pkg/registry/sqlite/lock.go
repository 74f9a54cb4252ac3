package sqlite

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// ErrInUse is wrapped where another process has the registry file open.
var ErrInUse = errors.New("in use by another process")

// lockSuffix names the file that is locked in place of the registry file. That one can be replaced under us, and SQLite has
// locks of its own on it, which the two kinds of locks become one of on some network file systems.
const lockSuffix = ".lock"

// lock is held as long as its file is open, so a process that dies lets go.
type lock struct{ file *os.File }

// acquire locks the registry file for this process, and does not wait.
func acquire(path string) (*lock, error) {
	f, err := os.OpenFile(path+lockSuffix, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("creating the lock file: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close() // nothing was written
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: stop that one first", ErrInUse)
		}
		return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
	}
	return &lock{f}, nil
}

func (l *lock) release() { _ = l.file.Close() }

// InUse tells whether a process has the registry file open, without leaving a trace.
func InUse(path string) (bool, error) {
	f, err := os.Open(path + lockSuffix)
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return true, nil
	}
	return false, err
}
