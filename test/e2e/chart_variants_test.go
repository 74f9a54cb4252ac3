package e2e

import "github.com/nordix/meridio-nsp/test/chart"

// object and list are values as YAML has them.
type (
	object = map[string]any
	list   = []any
)

// chartVariant is an installation that is kept as a golden file.
type chartVariant struct {
	name   string
	values chart.Values
	// hostPath needs more than pod security "restricted" admits.
	hostPath bool
}

var chartVariants = []chartVariant{
	{name: "default"},
	{name: "tls", values: chart.Values{
		"transport":   "tls",
		"tls":         object{"secretName": "nsp-tls", "verifyClients": true},
		"assignment":  "ready",
		"extraArgs":   list{"--max-watches=100000"},
		"trenches":    object{"managedBy": "chart", "list": list{object{"name": "trench-a"}}},
		"port":        7000,
		"metrics":     object{"port": 9100},
		"persistence": object{"size": "2Gi", "storageClassName": "fast", "whenDeleted": "Retain"},
		"resources":   object{"requests": object{"cpu": 2}},
	}},
	{name: "ephemeral", values: chart.Values{
		"image":             object{"repository": "registry.example/meridio-nsp", "tag": "v9.8.7", "pullPolicy": "Always"},
		"imagePullSecrets":  list{object{"name": "registry-login"}},
		"persistence":       object{"enabled": false, "size": "64Mi"},
		"authorisation":     "none",
		"logLevel":          "debug",
		"entryTimeout":      "1m30s",
		"podLabels":         object{"team": "network", "app.kubernetes.io/component": "ignored"},
		"podAnnotations":    object{"prometheus.io/scrape": "true"},
		"nodeSelector":      object{"kubernetes.io/os": "linux"},
		"priorityClassName": "system-cluster-critical",
		"tolerations":       list{object{"key": "edge", "operator": "Exists"}},
		"trenches":          object{"processAccounts": list{}},
		"affinity": object{"nodeAffinity": object{"requiredDuringSchedulingIgnoredDuringExecution": object{
			"nodeSelectorTerms": list{object{"matchExpressions": list{object{"key": "edge", "operator": "Exists"}}}},
		}}},
	}},
	{name: "trenches", values: chart.Values{
		"transport":     "spiffe",
		"trenches":      object{"managedBy": "chart", "list": list{object{"name": "trench-a"}, object{"name": "trench-b"}}},
		"networkPolicy": object{"enabled": true, "clients": list{object{"namespaceSelector": object{}}}},
		"virtualMachines": object{
			"enabled": true, "sourceRanges": list{"192.0.2.0/24", "2001:db8::/32"}, "annotations": object{"example.org/pool": "edge"},
		},
		"topologySpreadConstraints": list{object{
			"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
		}},
	}},
	{name: "standalone", values: chart.Values{
		"serviceFication":    object{"enabled": false},
		"trenches":           object{"managedBy": "chart", "list": list{object{"name": "trench-a"}}},
		"legacyRegistration": "deny",
		"networkPolicy":      object{"enabled": true, "metricsClients": list{object{"podSelector": object{}}}},
	}},
	{name: "namespaces", values: chart.Values{
		"serviceFication":      object{"targetNamespaces": list{"nsp-test-blue", "nsp-test-green", "nsp-test-blue"}},
		"authorisation":        "token",
		"tokens":               object{"verification": "local", "overPlaintext": true},
		"loadBalancerAccounts": list{"meridio-fes", "nsp-test-blue/lb=trench-a/conduit-a"},
		"inspectorAccounts":    list{"dashboard"},
		"networkPolicy":        object{"enabled": true},
		"metrics":              object{"port": 8081},
		"clusterName":          "west.example",
		"controller": object{
			"enabled": true, "replicas": 2, "readSecrets": true,
			"providers": list{
				object{"name": "azure", "address": "unix:///run/resolvers/azure.sock"},
				object{"name": "rack.7", "address": "resolver.nsp-test-blue:7000"},
			},
			"providerTLS": object{"secretName": "provider-tls"},
			"resolvers": list{object{
				"name": "azure", "image": "registry.example/resolver-azure:1",
				"args":            list{"--listen=unix:///run/resolvers/azure.sock"},
				"volumeMounts":    list{object{"name": "resolvers", "mountPath": "/also"}},
				"securityContext": object{"runAsUser": 10004},
			}},
		},
	}},
	{name: "cluster", hostPath: true, values: chart.Values{
		"serviceFication": object{"targetNamespaces": "*"},
		"transport":       "spiffe",
		"spiffe":          object{"source": "hostPath"},
		"trenches":        object{"processAccounts": list{"meridio-nsp", "blue/nsp"}},
		"tokens":          object{"verification": "local"},
		"crds":            object{"install": false},
		"controller":      object{"enabled": true},
		"virtualMachines": object{"enabled": true, "type": "NodePort", "nodePort": 30778, "caConfigMaps": list{"machines-ca"}},
	}},
}
