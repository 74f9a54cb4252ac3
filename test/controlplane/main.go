// Command controlplane is a Kubernetes control plane in one binary: the name it is called by picks the program.
//
// It is linked from the upstream sources of etcd, kube-apiserver, kube-controller-manager and kubectl, so that tests and
// the demo run against the real thing on a machine that has only Go. It is a module of its own to keep that weight out
// of the product's dependencies.
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

// programs are the names this binary answers to.
var programs = map[string]func(){
	"etcd":                    func() { etcdmain.Main(os.Args) },
	"kube-apiserver":          func() { os.Exit(cli.Run(apiserver.NewAPIServerCommand())) },
	"kube-controller-manager": func() { os.Exit(cli.Run(controllermanager.NewControllerManagerCommand())) },
	"kubectl":                 func() { os.Exit(cli.Run(kubectl.NewDefaultKubectlCommand())) },
}

func main() {
	name := filepath.Base(os.Args[0])
	run, ok := programs[name]
	if !ok {
		names := make([]string, 0, len(programs))
		for n := range programs {
			names = append(names, n)
		}
		fmt.Fprintf(os.Stderr, "%s: call this binary, by a link, as one of: %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	run()
}
