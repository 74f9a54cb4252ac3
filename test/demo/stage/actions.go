package stage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nordix/meridio-nsp/test/cluster"
	"github.com/nordix/meridio-nsp/test/play"
)

// action is what is done in one namespace.
type action func(context.Context, *side) error

func inRed(do action) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error { return do(ctx, w.red) }
}

func inBoth(do action) func(context.Context, *world) error {
	return func(ctx context.Context, w *world) error { return errors.Join(do(ctx, w.red), do(ctx, w.blue)) }
}

// service labels the Service, made if need be, as the pool of a stream.
func service(name, stream string) action {
	port := 4000 + int32(slices.Index(streams, stream)) // that of the stream's flow, see play.Configure
	return labelled(name, play.PoolLabels(trenchName, conduit, stream), port)
}

// unmarked makes the Service an ordinary one.
func unmarked(name string) action { return labelled(name, nil, 0) }

func labelled(name string, labels map[string]string, port int32) action {
	return func(ctx context.Context, s *side) error {
		_, err := s.cluster.Service(ctx, cluster.ServiceConfig{
			Namespace: s.name, Name: name, Labels: labels, Selector: app(name), Port: port,
		})
		return err
	}
}

// app are the labels of pods, and the selector of their Service.
func app(name string) map[string]string { return map[string]string{"app": name} }

func setReady(pod string, ready bool) action {
	return func(ctx context.Context, s *side) error {
		_, err := s.cluster.SetReady(ctx, s.name, pod, ready)
		return err
	}
}

// firstPods are there before any Service is.
func firstPods(ctx context.Context, s *side) error {
	if err := webPods(1, 2, 3, 4)(ctx, s); err != nil {
		return err
	}
	return errors.Join(
		s.addPod(ctx, "api-1", app("api"), 101, false),
		s.addPod(ctx, "api-2", app("api"), 102, true))
}

func webPods(numbers ...int) action {
	return func(ctx context.Context, s *side) error {
		var errs []error
		for _, n := range numbers {
			errs = append(errs, s.addPod(ctx, fmt.Sprintf("web-%d", n), app("web"), n, false))
		}
		return errors.Join(errs...)
	}
}

func terminate(pods ...string) action {
	return func(ctx context.Context, s *side) error {
		var errs []error
		for _, pod := range pods {
			errs = append(errs, s.cluster.Terminate(ctx, s.name, pod, 30*time.Second))
		}
		return errors.Join(errs...)
	}
}

func remove(pods ...string) action {
	return func(ctx context.Context, s *side) error {
		var errs []error
		for _, pod := range pods {
			errs = append(errs, s.removePod(ctx, pod))
		}
		return errors.Join(errs...)
	}
}

// nspProcess and trenchProcess pick a process.
func nspProcess(s *side) (name string, process *play.NSP)    { return "nsp", s.nsp }
func trenchProcess(s *side) (name string, process *play.NSP) { return "nsp trench", s.trench }

// killed ends a process without warning, starts it again once its load balancers have noticed, and waits until they are back.
func killed(which func(*side) (string, *play.NSP), lbs ...string) action {
	return func(ctx context.Context, s *side) error {
		note := func(who, what string) { s.journal.add(event{at: time.Now(), kind: life, who: who, what: what}) }
		name, nsp := which(s)
		until := func(live bool, what string) error {
			done := make(map[string]bool)
			for len(done) < len(lbs) {
				for _, lb := range lbs {
					if !done[lb] && s.lbs[lb].Live() == live {
						done[lb] = true
						note(lb, what)
					}
				}
				if pause(ctx, time.Millisecond); ctx.Err() != nil {
					return context.Cause(ctx)
				}
			}
			return nil
		}
		nsp.Kill()
		note(name, "killed")
		if err := until(false, "lost the watch"); err != nil {
			return err
		}
		if err := nsp.Start(ctx); err != nil {
			return err
		}
		note(name, "answers again")
		return until(true, "watches again")
	}
}

// oldTAPA makes a pod with a TAPA of Meridio 1.x, which opens a stream; see side.addOldPod.
func oldTAPA(pod string, number int, stream string) action {
	return func(ctx context.Context, s *side) error {
		if err := s.addOldPod(ctx, pod, app("api"), number); err != nil {
			return err
		}
		s.old(pod).Open(stream)
		return nil
	}
}

func closes(pod, stream string) action {
	return func(_ context.Context, s *side) error {
		s.old(pod).Close(stream)
		return nil
	}
}
