package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/auth"
	"github.com/nordix/meridio-nsp/pkg/nsp"
	"github.com/nordix/meridio-nsp/pkg/server"
)

// addAuth adds the flags that say who is believed, and how much anybody may take; byDefault says which mode is taken when.
func addAuth(cmd *cobra.Command, cfg *nsp.AuthConfig, byDefault string) {
	f := cmd.Flags()
	f.StringVar(&cfg.Authorisation, "authorisation", "", fmt.Sprintf("who is believed, one of %v; empty chooses %s", auth.Modes, byDefault))
	f.StringVar(&cfg.TokenVerification, "token-verification", nsp.ByReview,
		"how ServiceAccount tokens are verified: review asks the API server (a cluster-wide permission), local uses its public keys")
	f.BoolVar(&cfg.TokensOverPlaintext, "tokens-over-plaintext", false,
		"let callers show tokens over plaintext, where anybody on the way can take them")
	f.StringVar(&cfg.TrustDomain, "trust-domain", "", "trust domain of the SPIFFE IDs in client certificates, for mtls with --transport=tls")
	f.StringSliceVar(&cfg.LoadBalancerAccounts, "load-balancer-accounts", nil,
		"ServiceAccounts that may watch feeds, as namespace/name, =trench or =trench/conduit after those that may watch one only; "+
			"empty allows all of the NSP's namespace; for token and mtls")
	f.StringSliceVar(&cfg.InspectorAccounts, "inspector-accounts", nil,
		"ServiceAccounts that may look into everything from elsewhere, as namespace/name; for token and mtls")
	f.StringVar(&cfg.LegacyRegistration, "legacy-registration", string(server.LegacyAllow),
		fmt.Sprintf("whether callers that prove no pod, as those of Meridio 1.x, may register: one of %v", server.LegacyRegistrations))
	f.Float64Var(&cfg.Failures.PerPeer, "failed-authentications-per-peer", 10,
		"failed authentications a second of one source address that are looked at; 0 for no limit")
	f.Float64Var(&cfg.Failures.Total, "failed-authentications", 500, "likewise of all together")
	f.IntVar(&cfg.Limits.Watches, "max-watches", 50_000, "watches that may be open; 0 for no limit")
	f.IntVar(&cfg.Limits.WatchesPerPod, "max-watches-per-pod", 100,
		"watches that one pod may have open that has proven itself by its token, trench processes apart; 0 for no limit")
	f.IntVar(&cfg.Limits.WatchesPerPeer, "max-watches-per-peer", 1_000,
		"watches that one source address may have open whose callers prove no pod, or one trench process; 0 for no limit; not for loopback")
	f.IntVar(&cfg.MaxRegistrationsPerPod, "max-registrations-per-pod", 500,
		"targets that one pod may have registered that has proven itself by its token; 0 for no limit")
	f.IntVar(&cfg.MaxRegistrationsPerPeer, "max-registrations-per-peer", 10_000,
		"targets that one source address may have registered whose callers prove no pod; 0 for no limit; not for loopback")
	f.IntVar(&cfg.Limits.Connections, "max-connections", 30_000, "connections that may be open; 0 for no limit")
	f.IntVar(&cfg.Limits.ConnectionsPerPeer, "max-connections-per-peer", 1_000,
		"connections that one source address may have open; 0 for no limit; not for loopback")
	f.IntVar(&cfg.Limits.RequestBytes, "max-request-bytes", 4<<20, "largest message that is taken; 0 for 4 MiB")
	modes := make([]string, len(auth.Modes))
	for i, m := range auth.Modes {
		modes[i] = string(m)
	}
	complete(cmd, "authorisation", modes...)
	complete(cmd, "token-verification", nsp.TokenVerifications...)
	complete(cmd, "legacy-registration", string(server.LegacyAllow), string(server.LegacyOwnNamespace), string(server.LegacyDeny))
}
