// Package stage plays the demo: a list of scenes, each with what is done and what must come of it, around real namespace
// processes on a real control plane. It is the demo and its test at once.
package stage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/nordix/meridio-nsp/test/netns"
)

// Config says where the demo plays. Out must be set.
type Config struct {
	Out io.Writer
	// Log takes the progress of a first build of the control plane; default standard error.
	Log io.Writer
	// Colour is for terminals.
	Colour bool
	// Results is the directory that takes the summary of real packets and its figure; default meridio-nsp-demo in that of temporary files.
	Results string
	// Keep leaves everything running after the last scene, until the context ends.
	Keep bool
}

// Main plays the demo for the command line and returns its exit code.
func Main() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// After the first signal the next one ends the program at once.
	context.AfterFunc(ctx, stop)
	return Run(ctx, Config{
		Out:    os.Stdout,
		Colour: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && term.IsTerminal(int(os.Stdout.Fd())),
		Keep:   os.Getenv("DEMO_KEEP") != "",
	})
}

// Run plays the demo, leaves nothing behind and returns an exit code: 0 only if everything happened that should.
func Run(ctx context.Context, cfg Config) int {
	out := &screen{out: cfg.Out, colour: cfg.Colour}
	err := run(ctx, cfg, out)
	if err == nil {
		return 0
	}
	if ctx.Err() != nil {
		err = errors.New("interrupted")
	}
	out.line(out.paint(red, "The demo failed: "+err.Error()))
	return 1
}

func run(ctx context.Context, cfg Config, out *screen) error {
	began := time.Now()
	w := &world{screen: out, log: cfg.Log, hostAddress: hostAddress(), real: netns.Available() == nil,
		results: cmp.Or(cfg.Results, filepath.Join(os.TempDir(), "meridio-nsp-demo"))}
	defer w.close()
	if err := w.open(ctx); err != nil {
		return err
	}
	scenes := script(w)
	for i, s := range scenes {
		if err := w.play(ctx, fmt.Sprintf("%d/%d", i+1, len(scenes)), s); err != nil {
			if ctx.Err() == nil {
				w.explain()
			}
			return err
		}
	}
	w.summary()
	if err := w.realSummary(); err != nil {
		return err
	}
	out.line(out.paint(green, fmt.Sprintf("The demo went as it should, in %.0f s.", time.Since(began).Seconds())))
	if cfg.Keep {
		w.keep(ctx)
	}
	return nil
}
