package sqlite

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// leftovers are the files that SQLite may keep beside a database and that belong to its content. Its shared memory does not:
// whoever opens the log first makes it anew.
var leftovers = []string{"-journal", "-wal"}

// Snapshot copies a database and its leftovers into a directory and returns the path of the copy. The original is only read.
// One that changes meanwhile is copied again, a few times.
func Snapshot(path, dir string) (string, error) {
	to := filepath.Join(dir, "copy.db")
	const tries = 5
	for range tries {
		before, err := states(path)
		if err != nil {
			return "", err
		}
		for _, suffix := range append([]string{""}, leftovers...) {
			if err := copyFile(path+suffix, to+suffix); err != nil {
				return "", fmt.Errorf("copying the registry file: %w", err)
			}
		}
		after, err := states(path)
		if err != nil {
			return "", err
		}
		if before == after {
			return to, nil
		}
		time.Sleep(100 * time.Millisecond) // a transaction takes a few milliseconds
	}
	return "", fmt.Errorf("copying the registry file %s: %w: it is being written to", path, ErrInUse)
}

// state tells whether a file was changed.
type state struct {
	size     int64
	modified time.Time
}

func states(path string) ([3]state, error) {
	var all [3]state
	for i, suffix := range append([]string{""}, leftovers...) {
		info, err := os.Stat(path + suffix)
		switch {
		case suffix != "" && errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return all, fmt.Errorf("looking at the registry file: %w", err)
		default:
			all[i] = state{info.Size(), info.ModTime()}
		}
	}
	return all, nil
}

// copyFile copies a file; where there is none, there is no copy either.
func copyFile(from, to string) error {
	in, err := os.Open(from)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.Remove(to)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
