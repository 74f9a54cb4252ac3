package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	azfake "github.com/Azure/azure-sdk-for-go/sdk/azcore/fake"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	resolverv1 "github.com/nordix/meridio-nsp/api/resolver/v1"
)

// stream is a stream of the server without a network, so that it runs on synctest's clock.
type stream struct {
	grpc.ServerStream
	ctx    context.Context
	cancel context.CancelFunc
	sent   []string
	ended  chan error
}

func (s *stream) Context() context.Context { return s.ctx }

func (s *stream) Send(answer *resolverv1.WatchResponse) error {
	s.sent = append(s.sent, text(answer.Endpoints))
	return nil
}

// last is the last answer, as soon as nothing moves.
func (s *stream) last() string {
	synctest.Wait()
	if len(s.sent) == 0 {
		return "nothing"
	}
	return s.sent[len(s.sent)-1]
}

func text(endpoints []*resolverv1.Endpoint) string {
	var all []string
	for _, e := range endpoints {
		all = append(all, e.Address+" "+strings.ToLower(strings.TrimPrefix(e.Readiness.String(), "READINESS_")))
	}
	return strings.Join(all, ", ")
}

// fixture is a resolver on the fake cloud, asking every 10 s.
type fixture struct {
	*resolver
	t *testing.T
}

func simulate(t *testing.T, a azure, test func(t *testing.T, f fixture)) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		polls := newPolls(ctx, a, 10*time.Second, slog.New(slog.DiscardHandler))
		defer func() { cancel(); polls.running.Wait() }()
		test(t, fixture{resolver: &resolver{polls: polls}, t: t})
	})
}

func (f fixture) watch() *stream {
	s := &stream{ended: make(chan error, 1)}
	s.ctx, s.cancel = context.WithCancel(f.t.Context())
	go func() { s.ended <- f.Watch(&resolverv1.WatchRequest{Locator: webID}, s) }()
	return s
}

// later lets time pass, of synctest's clock.
func later(d time.Duration) { <-time.After(d); synctest.Wait() }

func TestFollowsInstances(t *testing.T) {
	cloud := newFakeCloud(up("0", "10.0.0.4"), up("1", "10.0.0.5"))
	simulate(t, cloud.azure(), func(t *testing.T, f fixture) {
		s := f.watch()
		defer s.cancel()
		require.Equal(t, "10.0.0.4 ready, 10.0.0.5 ready", s.last())
		later(time.Minute)
		require.Len(t, s.sent, 1, "nothing has changed")

		cloud.set(func() { cloud.instances[1].provisioning = "Deleting" })
		later(10 * time.Second)
		require.Equal(t, "10.0.0.4 ready, 10.0.0.5 draining", s.last())
		cloud.set(func() { cloud.instances = cloud.instances[:1] })
		later(10 * time.Second)
		require.Equal(t, "10.0.0.4 ready", s.last())
		cloud.set(func() { cloud.instances = nil })
		later(10 * time.Second)
		require.Empty(t, s.last(), "no instance is an answer")
	})
}

func TestReadsAllPages(t *testing.T) {
	var instances []instance
	for i := range 25 {
		instances = append(instances, up(fmt.Sprint(i), fmt.Sprintf("10.0.1.%d", i)))
	}
	cloud := newFakeCloud(instances...)
	cloud.pageSize = 10
	simulate(t, cloud.azure(), func(t *testing.T, f fixture) {
		s := f.watch()
		defer s.cancel()
		require.Equal(t, 25, strings.Count(s.last(), "ready"))
		require.Equal(t, 6, cloud.pages, "three pages of instances, three of interfaces")
	})
}

func TestThrottlingIsHonoured(t *testing.T) {
	cloud := newFakeCloud(up("0", "10.0.0.4"))
	simulate(t, cloud.azure(), func(t *testing.T, f fixture) {
		s := f.watch()
		require.Equal(t, "10.0.0.4 ready", s.last())
		cloud.set(func() { cloud.refusal, cloud.after = http.StatusTooManyRequests, 5*time.Minute })
		err := <-s.ended
		require.Equal(t, codes.ResourceExhausted, status.Code(err))
		require.ErrorContains(t, err, "--interval")
		require.Len(t, s.sent, 1, "the last answer stands")

		cloud.set(func() { cloud.refusal = 0 })
		refusedAt := time.Now()
		for time.Since(refusedAt) < 5*time.Minute-time.Second { // as the controller does: every 30 s or less
			require.Equal(t, codes.ResourceExhausted, status.Code(<-f.watch().ended))
			later(time.Second)
		}
		require.Len(t, cloud.times(), 2, "nobody asks Azure before it wants to be asked")
		later(time.Second)
		s = f.watch()
		defer s.cancel()
		require.Equal(t, "10.0.0.4 ready", s.last())
		require.Equal(t, 5*time.Minute, cloud.times()[2].Sub(refusedAt))
	})
}

func TestRefusals(t *testing.T) {
	for code, want := range map[int]struct {
		code codes.Code
		says string
	}{
		http.StatusUnauthorized:        {codes.PermissionDenied, "refuses the credentials of the provider (401 Refused)"},
		http.StatusForbidden:           {codes.PermissionDenied, "grant them the role Reader"},
		http.StatusNotFound:            {codes.NotFound, "there is no scale set web in resource group edge"},
		http.StatusServiceUnavailable:  {codes.Unavailable, "Azure answers 503"},
		http.StatusInternalServerError: {codes.Unavailable, "Azure answers 500"},
	} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			cloud := newFakeCloud(up("0", "10.0.0.4"))
			simulate(t, cloud.azure(), func(t *testing.T, f fixture) {
				s := f.watch()
				require.Equal(t, "10.0.0.4 ready", s.last())
				cloud.set(func() { cloud.refusal = code })
				err := <-s.ended
				require.Equal(t, want.code, status.Code(err))
				require.ErrorContains(t, err, want.says)
				require.Len(t, s.sent, 1, "the last answer stands")

				cloud.set(func() { cloud.refusal = 0 })
				later(10 * time.Second)
				s = f.watch()
				defer s.cancel()
				require.Equal(t, "10.0.0.4 ready", s.last())
			})
		})
	}
}

func TestNoToken(t *testing.T) {
	cloud := newFakeCloud()
	a, credential := cloud.azure(), &azfake.TokenCredential{}
	credential.SetError(errors.New("AADSTS7000215: invalid client secret"))
	a.credential = credential
	simulate(t, a, func(t *testing.T, f fixture) {
		err := <-f.watch().ended
		require.Equal(t, codes.PermissionDenied, status.Code(err))
		require.ErrorContains(t, err, "AZURE_CLIENT_ID")
		require.ErrorContains(t, err, "invalid client secret")
		require.Zero(t, cloud.pages)
	})
}

func TestOnePollForAllStreams(t *testing.T) {
	cloud := newFakeCloud(up("0", "10.0.0.4"))
	simulate(t, cloud.azure(), func(t *testing.T, f fixture) {
		var streams []*stream
		for range 20 {
			streams = append(streams, f.watch())
		}
		for _, s := range streams {
			require.Equal(t, "10.0.0.4 ready", s.last())
			s.cancel()
			require.NoError(t, <-s.ended)
		}
		require.Len(t, cloud.times(), 1)
		later(time.Minute)
		require.LessOrEqual(t, len(cloud.times()), 2, "nobody follows any more")
		require.Empty(t, f.polls.all)
	})
}

func TestBackoff(t *testing.T) {
	for _, c := range []struct {
		failures int
		after    time.Duration
		want     time.Duration
	}{
		{1, 0, 10 * time.Second}, {2, 0, 20 * time.Second}, {4, 0, 80 * time.Second}, {100, 0, longestPause},
		{1, time.Second, 10 * time.Second}, {1, 20 * time.Minute, 20 * time.Minute}, {1, 1000 * time.Hour, longestRetryAfter},
	} {
		require.Equal(t, c.want, backoff(10*time.Second, c.failures, c.after), "%+v", c)
	}
	require.Equal(t, time.Hour, backoff(time.Hour, 3, 0), "never more often than asked for")
}

func TestHangingIsNamed(t *testing.T) {
	cloud := newFakeCloud(up("0", "10.0.0.4"))
	a := cloud.azure()
	a.options.Transport = hanging{}
	simulate(t, a, func(t *testing.T, f fixture) {
		err := <-f.watch().ended
		require.Equal(t, codes.Unavailable, status.Code(err))
		require.ErrorContains(t, err, "longer than 2m0s")
	})
}

// hanging never answers.
type hanging struct{}

func (hanging) Do(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, r.Context().Err()
}

func TestFlexibleIsRefused(t *testing.T) {
	cloud := newFakeCloud(up("0", "10.0.0.4"))
	cloud.flexible = true
	simulate(t, cloud.azure(), func(t *testing.T, f fixture) {
		err := <-f.watch().ended
		require.Equal(t, codes.InvalidArgument, status.Code(err))
		require.ErrorContains(t, err, "flexible orchestration")
	})
}

func TestFailuresAreAskedForLessAndLess(t *testing.T) {
	cloud := newFakeCloud()
	cloud.refusal = http.StatusServiceUnavailable
	simulate(t, cloud.azure(), func(t *testing.T, f fixture) {
		for range 120 { // a stream every 5 s, as none lives
			require.Equal(t, codes.Unavailable, status.Code(<-f.watch().ended))
			later(5 * time.Second)
		}
		require.Len(t, cloud.times(), 6, "at 0, 10, 30, 70, 150 and 310 s")
	})
}
