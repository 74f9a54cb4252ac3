package client

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// jwt is a token that lives from now on, signed by nobody.
func jwt(name string, life time.Duration) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"none"}`)) + "." + encode(fmt.Appendf(nil, `{"sub":%q,"iat":%d,"exp":%d}`,
		name, time.Now().Unix(), time.Now().Add(life).Unix())) + "." + encode([]byte(name))
}

// project writes a token as the kubelet does: a link to a directory is replaced.
func project(t testing.TB, dir, token string) (path string) {
	t.Helper()
	data, err := os.MkdirTemp(dir, "..data-")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(data, "token"), []byte(token), 0o600))
	require.NoError(t, os.Symlink(data, filepath.Join(dir, "..next")))
	require.NoError(t, os.Rename(filepath.Join(dir, "..next"), filepath.Join(dir, "..data")))
	return filepath.Join(dir, "..data", "token")
}

func shown(c *feedCall) string {
	md, _ := metadata.FromIncomingContext(c.ctx)
	if v := md.Get("authorization"); len(v) == 1 {
		return v[0]
	}
	return ""
}

// The kubelet replaces the token at four fifths of its life. The stream is opened again with the next token before the first
// one ends, with resume, and nothing changes for the receiver.
func TestStreamFollowsItsTokenFile(t *testing.T) {
	dir := t.TempDir()
	bubble(t, func(t *testing.T, f *fake, config Config) {
		const life = 10 * time.Minute
		first := jwt("first", life)
		config.PerRPC = NewTokenFile(project(t, dir, first), true)
		_, updates := follow(t, config)
		token, opened := first, time.Now()
		c, _ := nextFeed(t, f)
		play(t, c, snapshot(version("E", 1)))
		next(t, updates)
		for i := range 3 {
			require.Equal(t, "Bearer "+token, shown(c))
			for time.Since(opened) < life*4/5 {
				require.Empty(t, f.feeds, "it lasts while its token does")
				time.Sleep(10 * time.Second)
				play(t, c, heartbeat(version("E", 1)))
			}
			token = jwt(fmt.Sprint("next", i), life)
			rotated := time.Now()
			project(t, dir, token)
			for len(f.feeds) == 0 {
				require.Less(t, time.Since(opened), life, "it is opened again before the token ends")
				time.Sleep(time.Second)
				_ = c.send(heartbeat(version("E", 1)))
			}
			c = next(t, f.feeds)
			require.NotNil(t, (<-c.requests).GetResume())
			play(t, c, heartbeat(version("E", 1)))
			opened = rotated
		}
		require.Empty(t, updates)
	})
}

// A stream that the server ends with its token is opened again at once; only when that is refused too there is a pause.
func TestStreamEndedWithItsToken(t *testing.T) {
	bubble(t, func(t *testing.T, f *fake, config Config) {
		_, updates := follow(t, config)
		c, _ := nextFeed(t, f)
		play(t, c, snapshot(version("E", 1)))
		next(t, updates)
		ended := time.Now()
		c.finish(status.Error(codes.Unauthenticated, "the token has expired"))
		c, req := nextFeed(t, f)
		require.NotNil(t, req.GetResume())
		require.LessOrEqual(t, time.Since(ended), DefaultBackoffBase)
		c.finish(status.Error(codes.Unauthenticated, "the token has expired"))
		ended = time.Now()
		nextFeed(t, f)
		require.GreaterOrEqual(t, time.Since(ended), DefaultBackoffMax/2)
	})
}

func TestTokenFile(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "token")
		f := NewTokenFile(path, false)
		require.True(t, f.RequireTransportSecurity())
		require.False(t, NewTokenFile(path, true).RequireTransportSecurity())
		_, err := f.GetRequestMetadata(t.Context())
		require.ErrorIs(t, err, errNoToken)
		require.ErrorIs(t, err, os.ErrNotExist)
		require.Zero(t, f.Reopen())

		token := jwt("one", time.Hour)
		require.NoError(t, os.WriteFile(path, []byte(token+"\n"), 0o600))
		show := func(want string) {
			t.Helper()
			md, err := f.GetRequestMetadata(t.Context())
			require.NoError(t, err)
			require.Equal(t, map[string]string{"authorization": "Bearer " + want}, md)
		}
		show(token)
		again := f.Reopen()
		require.Greater(t, again, 48*time.Minute)
		require.LessOrEqual(t, again, 54*time.Minute)

		require.NoError(t, os.WriteFile(path, nil, 0o600))
		show(token) // amid a rotation
		require.NoError(t, os.Remove(path))
		show(token)
		time.Sleep(58 * time.Minute)
		require.Equal(t, time.Minute, f.Reopen(), "there is hope until the end")
		time.Sleep(3 * time.Minute)
		_, err = f.GetRequestMetadata(t.Context())
		require.ErrorIs(t, err, errNoToken, "an expired one is not shown to anybody")

		require.NoError(t, os.WriteFile(path, []byte("opaque"), 0o600))
		show("opaque")
		require.Zero(t, f.Reopen())
	})
}

func FuzzParseToken(f *testing.F) {
	f.Add("a.b.c")
	f.Add(jwt("x", time.Hour))
	f.Fuzz(func(t *testing.T, raw string) {
		require.Equal(t, raw, parseToken(raw).raw)
	})
}
