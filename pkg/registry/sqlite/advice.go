package sqlite

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	driver "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/nordix/meridio-nsp/pkg/registry"
)

// advise says which file an error is about, and what to do where that is plain.
func advise(path string, err error) error {
	switch {
	case err == nil, errors.Is(err, registry.ErrLost):
		return err
	case isFull(path, err):
		return fmt.Errorf("the disk of the registry file %s is full: free space on it, or give it more: %w", path, err)
	case isUnwritable(err):
		return fmt.Errorf("the registry file %s cannot be written to: make it and its directory writable for user %d: %w", path, os.Geteuid(), err)
	}
	return fmt.Errorf("the registry file %s: %w", path, err)
}

// isFull tells whether the disk is. SQLite says so of the database only, not of the files that it needs beside it.
func isFull(path string, err error) bool {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || code(err) == lib.SQLITE_FULL {
		return true
	}
	var fs syscall.Statfs_t
	return code(err) == lib.SQLITE_IOERR && syscall.Statfs(filepath.Dir(path), &fs) == nil && fs.Bavail == 0
}

func isUnwritable(err error) bool {
	c := code(err)
	return errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS) ||
		c == lib.SQLITE_READONLY || c == lib.SQLITE_CANTOPEN || c == lib.SQLITE_PERM
}

// code is SQLite's primary result code, 0 where the error is none of SQLite's.
func code(err error) int {
	if e, ok := errors.AsType[*driver.Error](err); ok {
		return e.Code() & 0xff // the upper bits are the extended code
	}
	return 0
}
