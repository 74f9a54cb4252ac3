package cli

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/spiffe/go-spiffe/v2/workloadapi"
)

// SPIFFEFlag is the one flag whose variable has no prefix: it is that of the SPIFFE specification.
const SPIFFEFlag = "spiffe-endpoint-socket"

// FromEnvironment sets every flag --foo-bar that is not on the command line from NSP_FOO_BAR. Other variables that begin
// with NSP_ are ignored: a Service called nsp-service makes Kubernetes inject some.
func FromEnvironment(flags *pflag.FlagSet) error {
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		name := variableOf(f.Name)
		value, ok := os.LookupEnv(name)
		if _, not := f.Annotations[notFromEnvironment]; not {
			return
		}
		if !ok || f.Changed || f.Name == "help" || f.Name == "version" {
			return
		}
		if err := flags.Set(f.Name, value); err != nil {
			errs = append(errs, unfit(name, value, f.Name, err))
		}
	})
	if err := errors.Join(errs...); err != nil {
		return UsageError{err}
	}
	return nil
}

// notFromEnvironment marks flags that have no variable.
const notFromEnvironment = "not-from-environment"

// NotFromEnvironment takes its variable from a flag.
func NotFromEnvironment(cmd *cobra.Command, flag string) {
	if err := cmd.Flags().SetAnnotation(flag, notFromEnvironment, nil); err != nil {
		panic(err) // the flag does not exist
	}
}

// Variable is the environment variable that FromEnvironment sets a flag from, empty where there is none.
func Variable(f *pflag.Flag) string {
	if _, not := f.Annotations[notFromEnvironment]; not {
		return ""
	}
	return variableOf(f.Name)
}

// variableOf is the environment variable of a flag.
func variableOf(flag string) string {
	if flag == SPIFFEFlag {
		return workloadapi.SocketEnv
	}
	return "NSP_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// unfit says why a variable is refused. Kubernetes gives every pod a variable NSP_PORT where there is a Service called nsp, and
// that is the one case where nobody has set it.
func unfit(name, value, flag string, err error) error {
	if strings.HasPrefix(value, "tcp://") {
		return fmt.Errorf("the environment variable %s=%q comes from a Kubernetes Service and does not fit --%s: "+
			"set enableServiceLinks: false in the pod, or set --%s", name, value, flag, flag)
	}
	return fmt.Errorf("the environment variable %s=%q does not fit --%s: %w", name, value, flag, err)
}
