package auth

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var a, b = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::2")

func TestModes(t *testing.T) {
	for _, m := range Modes {
		parsed, err := ParseMode(string(m))
		require.NoError(t, err)
		require.Equal(t, m, parsed)
	}
	_, err := ParseMode("trust")
	require.ErrorContains(t, err, `"trust"`)
	require.ErrorContains(t, err, "peer-address")
}

func TestSpeaksFor(t *testing.T) {
	for name, tt := range map[string]struct {
		caller Caller
		addrs  []netip.Addr
		shared bool
		denied string
	}{
		"its own address":         {Caller{Mode: PeerAddress, Addr: a}, []netip.Addr{b, a}, false, ""},
		"another address":         {Caller{Mode: PeerAddress, Addr: a}, []netip.Addr{b}, false, "comes from 10.0.0.1"},
		"a pod without addresses": {Caller{Mode: PeerAddress, Addr: a}, nil, false, "comes from 10.0.0.1"},
		"a shared address (D4)":   {Caller{Mode: PeerAddress, Addr: a}, []netip.Addr{a}, true, "another pod bears the address 10.0.0.1"},
		"no address at all":       {Caller{Mode: PeerAddress}, []netip.Addr{a}, false, "not an address of that pod"},
		"nobody":                  {Caller{}, []netip.Addr{a}, false, "not an address of that pod"},
		"everybody is believed":   {Caller{Mode: None, Addr: a}, []netip.Addr{b}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := tt.caller.SpeaksFor(tt.addrs, tt.shared)
			if tt.denied == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, ErrDenied)
			require.ErrorContains(t, err, tt.denied)
		})
	}
	require.NoError(t, Caller{Mode: PeerAddress, Addr: a}.SpeaksForAddress(a))
	require.ErrorIs(t, Caller{Mode: PeerAddress, Addr: a}.SpeaksForAddress(b), ErrDenied)
}

func TestLocal(t *testing.T) {
	require.True(t, Caller{}.Local(), "a unix socket")
	require.True(t, Caller{Addr: netip.MustParseAddr("127.0.0.1")}.Local())
	require.True(t, Caller{Addr: netip.MustParseAddr("::1")}.Local())
	require.False(t, Caller{Addr: a}.Local())
}

func TestContext(t *testing.T) {
	require.Equal(t, Caller{Mode: PeerAddress, Addr: a}, From(With(t.Context(), Caller{Mode: PeerAddress, Addr: a})))
	require.Equal(t, Caller{}, From(t.Context()))
}
