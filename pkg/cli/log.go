package cli

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/klog/v2"
)

// Levels are the level of a log, which signals change, and the one that was configured.
type Levels struct {
	now        *slog.LevelVar
	configured slog.Level
}

// meridioLevels are the names that Meridio 1.x knows, or is given, beside ours.
var meridioLevels = map[string]slog.Level{
	"": slog.LevelInfo, "TRACE": slog.LevelDebug, "WARNING": slog.LevelWarn, "CRITICAL": slog.LevelError, "FATAL": slog.LevelError,
	"PANIC": slog.LevelError,
}

func parseLevel(name string) (slog.Level, error) {
	if l, ok := meridioLevels[strings.ToUpper(name)]; ok {
		return l, nil
	}
	var l slog.Level
	if err := l.UnmarshalText([]byte(name)); err != nil {
		return l, UsageError{fmt.Errorf("--log-level is %q: choose debug, info, warn or error", name)}
	}
	return l, nil
}

// NewLogger logs JSON lines to w. The libraries below log through it too, from warnings on.
func NewLogger(w io.Writer, level string) (*slog.Logger, *Levels, error) {
	l, err := parseLevel(level)
	if err != nil {
		return nil, nil, err
	}
	now := new(slog.LevelVar)
	now.Set(l)
	log := slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: now}))
	klog.SetSlogLogger(slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: atLeastWarn{now}})))
	return log, &Levels{now, l}, nil
}

// atLeastWarn is a level that is never below that of warnings.
type atLeastWarn struct{ slog.Leveler }

// Level implements slog.Leveler.
func (a atLeastWarn) Level() slog.Level { return max(a.Leveler.Level(), slog.LevelWarn) }

// Follow changes the level by signals, as Meridio 1.x does: SIGUSR2 shows all, SIGUSR1 what was configured. The channel is
// closed after ctx has ended.
func (l *Levels) Follow(ctx context.Context, log *slog.Logger) (ended <-chan struct{}) {
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		defer close(done)
		defer signal.Stop(signals)
		for {
			select {
			case <-ctx.Done():
				return
			case s := <-signals:
				level := l.configured
				if s == syscall.SIGUSR2 {
					level = slog.LevelDebug
				}
				l.now.Set(level)
				log.Log(ctx, max(level, slog.LevelInfo), "log level changed", "level", level.String(), "signal", s.String())
			}
		}
	}()
	return done
}
