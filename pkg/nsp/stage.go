package nsp

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"golang.org/x/sync/errgroup"
)

// errEnded is a component that returned although nobody told it to.
var errEnded = errors.New("ended by itself")

// component is something that runs.
type component struct {
	name string
	run  func(ctx context.Context) error
}

// runStages runs stages of components, the first being the one that the others stand on. When ctx ends or a component fails
// or returns, the stages are stopped one after the other, the last one first: each goes on until those that need it are
// through. The error is that of the component that failed first.
func runStages(ctx context.Context, stages ...[]component) error {
	ended, end := context.WithCancelCause(ctx)
	defer end(nil)
	stops := make([]func() error, len(stages))
	for i, stage := range stages {
		stops[i] = start(context.WithoutCancel(ctx), end, stage)
	}
	<-ended.Done()
	var errs []error
	for _, stop := range slices.Backward(stops) {
		errs = append(errs, stop())
	}
	if ctx.Err() == nil {
		return context.Cause(ended)
	}
	return errors.Join(errs...)
}

// start runs the components of a stage; the first that ends calls end. It returns a function that stops them and waits.
func start(ctx context.Context, end context.CancelCauseFunc, stage []component) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	var group errgroup.Group
	for _, c := range stage {
		group.Go(func() error {
			err := protect(ctx, c)
			switch {
			case err != nil:
				err = fmt.Errorf("%s: %w", c.name, err)
			case ctx.Err() == nil:
				err = fmt.Errorf("%s: %w", c.name, errEnded)
			default:
				return nil
			}
			end(err)
			return err
		})
	}
	return func() error {
		cancel()
		return group.Wait()
	}
}

// protect turns a panic into an error, so that everything is stopped in order and the store is closed.
func protect(ctx context.Context, c component) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return c.run(ctx)
}
