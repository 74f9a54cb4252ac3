// Command crds prints the CustomResourceDefinitions of the Prometheus operator that the chart has objects of. It is a module of
// its own, because the operator's would lift versions of the product.
package main

import (
	"bytes"
	"log"
	"os"

	crd "github.com/prometheus-operator/prometheus-operator/example"
)

func main() {
	var all bytes.Buffer
	if err := crd.PrintAll(&all); err != nil {
		log.Fatalf("reading the CRDs: %v", err)
	}
	for _, document := range bytes.Split(all.Bytes(), []byte("\n---\n")) {
		for _, kind := range []string{"servicemonitors", "prometheusrules"} {
			if bytes.Contains(document, []byte("\n  name: "+kind+".monitoring.coreos.com\n")) {
				os.Stdout.Write(append([]byte("---\n"), append(document, '\n')...))
			}
		}
	}
}
