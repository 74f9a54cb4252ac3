package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nordix/meridio-nsp/test/chart"
)

// skipChartIfShort skips tests that may have to build helm.
func skipChartIfShort(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs helm, which -short leaves out")
	}
}

func TestChartRendersAsReviewed(t *testing.T) {
	skipChartIfShort(t)
	for _, variant := range chartVariants {
		t.Run(variant.name, func(t *testing.T) {
			got, err := chart.Render(t.Context(), "meridio", variant.values)
			require.NoError(t, err)
			got = withoutCRDs(got)
			golden := filepath.Join("testdata", "chart", variant.name+".yaml")
			if *update {
				require.NoError(t, os.MkdirAll(filepath.Dir(golden), 0o755))
				require.NoError(t, os.WriteFile(golden, got, 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), string(got), "if this is meant: go test ./test/e2e -run TestChartRendersAsReviewed -update")
		})
	}
}

// withoutCRDs drops what is generated, and reviewed where it is generated from.
func withoutCRDs(manifests []byte) []byte {
	var kept [][]byte
	for _, document := range bytes.Split(manifests, []byte("---\n# Source: ")) {
		if !bytes.HasPrefix(document, []byte("meridio-nsp/templates/crds.yaml\n")) {
			kept = append(kept, document)
		}
	}
	return bytes.Join(kept, []byte("---\n# Source: "))
}

func TestChartOffInstallsNothing(t *testing.T) {
	skipChartIfShort(t)
	off := chart.Values{
		"serviceFication": object{"enabled": false}, "networkPolicy": object{"enabled": true},
		"metrics": object{"serviceMonitor": object{"enabled": false}},
	}
	manifests, err := chart.Render(t.Context(), "meridio", off)
	require.NoError(t, err)
	require.Empty(t, bytes.TrimSpace(manifests))
	notes, err := chart.Notes(t.Context(), "meridio", off)
	require.NoError(t, err)
	require.Contains(t, notes, "nothing was installed")
}

func TestChartNotesSayWhatToDoNext(t *testing.T) {
	skipChartIfShort(t)
	notes, err := chart.Notes(t.Context(), "meridio", nil)
	require.NoError(t, err)
	require.Contains(t, notes, "kubectl --namespace meridio rollout status statefulset/nsp")
	require.Contains(t, notes, "service.kubernetes.io/service-proxy-name: meridio-target-pool-service")
	require.Contains(t, notes, "nsp-service.meridio:7778")
	require.Contains(t, notes, "not encrypted")
	require.NotContains(t, notes, "any client may act for any pod")

	require.NotContains(t, notes, "nsp-controller")

	notes, err = chart.Notes(t.Context(), "meridio", chart.Values{"controller": object{"enabled": true}})
	require.NoError(t, err)
	require.Contains(t, notes, "rollout status deployment/nsp-controller")

	notes, err = chart.Notes(t.Context(), "meridio", chart.Values{
		"transport": "tls", "tls": object{"secretName": "s"}, "authorisation": "none",
	})
	require.NoError(t, err)
	require.NotContains(t, notes, "not encrypted")
	require.Contains(t, notes, "any client may act for any pod")
}

// badValues are refused, each with a message that says which value.
var badValues = []badValue{
	{"unknown value", "servicefication", chart.Values{"servicefication": object{"enabled": true}}},
	{"unknown value below", "enable", chart.Values{"serviceFication": object{"enable": true}}},
	{"word for a switch", "/serviceFication/enabled", chart.Values{"serviceFication": object{"enabled": "yes"}}},
	{"transport", "/transport", chart.Values{"transport": "mtls"}},
	{"tls without Secret", "/tls/secretName", chart.Values{"transport": "tls"}},
	{"Secret without tls", "/tls/secretName", chart.Values{"tls": object{"secretName": "s"}}},
	{"client certificates without tls", "/tls/verifyClients", chart.Values{"tls": object{"verifyClients": true}}},
	{"authorisation", "/authorisation", chart.Values{"authorisation": "off"}},
	{"SPIFFE socket that is a path", "/spiffe/socket", chart.Values{"spiffe": object{"socket": "a/b"}}},
	{"SPIFFE source", "/spiffe/source", chart.Values{"spiffe": object{"source": "pvc"}}},
	{"namespace that is none", "/serviceFication/targetNamespaces", chart.Values{"serviceFication": object{"targetNamespaces": list{"A"}}}},
	{"namespaces as a word", "/serviceFication/targetNamespaces", chart.Values{"serviceFication": object{"targetNamespaces": "all"}}},
	{"controller alone", "/serviceFication/enabled", chart.Values{
		"controller": object{"enabled": true}, "serviceFication": object{"enabled": false},
	}},
	{"no controller", "/controller/replicas", chart.Values{"controller": object{"replicas": 0}}},
	{"provider without address", "/controller/providers/0", chart.Values{"controller": object{"providers": list{object{"name": "a"}}}}},
	{"two providers in one", "/controller/providers/0/address", provider("a", "unix:///a,b=unix:///b")},
	{"provider without port", "/controller/providers/0/address", provider("a", "resolver.blue")},
	{"provider elsewhere without certificate", "/controller/providerTLS/secretName", provider("a", "resolver.blue:7000")},
	{"provider twice", "names a twice", chart.Values{"controller": object{"enabled": true, "providers": list{
		object{"name": "a", "address": "unix:///a"}, object{"name": "a", "address": "unix:///b"},
	}}}},
	{"resolver without image", "/controller/resolvers/0", chart.Values{"controller": object{"resolvers": list{object{"name": "a"}}}}},
	{"manager", "/trenches/managedBy", chart.Values{"trenches": object{"managedBy": "me"}}},
	{"trenches of the operator", "/trenches/list", chart.Values{"trenches": object{"list": list{object{"name": "a"}}}}},
	{"trench twice", "names a twice", chart.Values{
		"transport": "spiffe", "trenches": trenches("a", "a")["trenches"],
	}},
	{"trench without name", "/trenches/list/0", trenches("")},
	{"trench with a long name", "/trenches/list/0", trenches(strings.Repeat("a", 49))},
	{"account", "/trenches/processAccounts/0", chart.Values{"trenches": object{"processAccounts": list{"a,b"}}}},
	{"mtls without certificates", "/transport", chart.Values{"authorisation": "mtls"}},
	{"mtls without certificates of clients", "/tls/verifyClients", chart.Values{
		"authorisation": "mtls", "transport": "tls", "tls": object{"secretName": "s"},
	}},
	{"machines that prove nothing", "virtualMachines: a machine proves", chart.Values{"virtualMachines": object{"enabled": true}}},
	{"machines inside", "/virtualMachines/type", chart.Values{"virtualMachines": object{"type": "ClusterIP"}}},
	{"range that is none", "/virtualMachines/sourceRanges/0", chart.Values{"virtualMachines": object{"sourceRanges": list{"everywhere"}}}},
	{"registration", "/legacyRegistration", chart.Values{"legacyRegistration": "no"}},
	{"replicas", "/replicas", chart.Values{"replicas": 2}},
	{"peer", "/networkPolicy/clients/0", chart.Values{"networkPolicy": object{"clients": list{object{"pods": "all"}}}}},
	{"interval", "/metrics/serviceMonitor/interval", chart.Values{"metrics": object{"serviceMonitor": object{"interval": "15"}}}},
	{"spread", "/topologySpreadConstraints/0", chart.Values{"topologySpreadConstraints": list{object{"maxSkew": 1}}}},
	{"relay without proof", "choose transport=spiffe or authorisation=token", trenches("a")},
	{"tokens over plaintext", "/tokens/overPlaintext", chart.Values{"authorisation": "token"}},
	{"mtls without trust domain", "/tls/trustDomain", chart.Values{
		"authorisation": "mtls", "transport": "tls", "tls": object{"secretName": "s", "verifyClients": true},
	}},
	{"verification", "/tokens/verification", chart.Values{"tokens": object{"verification": "no"}}},
	{"load balancer", "/loadBalancerAccounts/0", chart.Values{"loadBalancerAccounts": list{"a=b=c"}}},
	{"no flag", "/extraArgs/0", chart.Values{"extraArgs": list{"namespace"}}},
	{"assignment", "/assignment", chart.Values{"assignment": "always"}},
	{"log level", "/logLevel", chart.Values{"logLevel": "trace"}},
	{"timeout without unit", "/entryTimeout", chart.Values{"entryTimeout": "60"}},
	{"timeout of zero", "/entryTimeout", chart.Values{"entryTimeout": "0m0.0s"}},
	{"negative timeout", "/entryTimeout", chart.Values{"entryTimeout": "-60s"}},
	{"privileged port", "/port", chart.Values{"port": 80}},
	{"same port twice", "metrics.port", chart.Values{"port": 9090}},
	{"negative size", "/persistence/size", chart.Values{"persistence": object{"size": "-1Gi"}}},
	{"no image", "/image/repository", chart.Values{"image": object{"repository": ""}}},
	{"tag with a space", "/image/tag", chart.Values{"image": object{"tag": "a b"}}},
	{"annotation that is no string", "/podAnnotations/a", chart.Values{"podAnnotations": object{"a": 1}}},
}

type badValue struct {
	name, says string
	values     chart.Values
}

func TestChartRefusesBadValues(t *testing.T) {
	skipChartIfShort(t)
	for _, test := range badValues {
		t.Run(test.name, func(t *testing.T) {
			_, err := chart.Render(t.Context(), "meridio", test.values)
			require.ErrorContains(t, err, test.says)
		})
	}
}

// provider are values with one.
func provider(name, address string) chart.Values {
	return chart.Values{"controller": object{"enabled": true, "providers": list{object{"name": name, "address": address}}}}
}

// trenches are values with trenches of these names.
func trenches(names ...string) chart.Values {
	all := list{}
	for _, name := range names {
		all = append(all, object{"name": name})
	}
	return chart.Values{"trenches": object{"managedBy": "chart", "list": all}}
}
