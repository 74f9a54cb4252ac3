// Command resolver-azure is a provider of resolver.v1 for virtual machine scale sets of Azure: the locator is the resource id of
// the scale set, the answer the addresses of its instances.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/spf13/cobra"

	"github.com/nordix/meridio-nsp/pkg/external/serve"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// config is the command line.
type config struct {
	listen   serve.Config
	cloud    string
	scopes   []string
	interval time.Duration
	all      bool
}

var clouds = map[string]cloud.Configuration{
	"public": cloud.AzurePublic, "government": cloud.AzureGovernment, "china": cloud.AzureChina,
}

func newRoot() *cobra.Command {
	var cfg config
	cmd := &cobra.Command{
		Use:   "resolver-azure",
		Short: "Resolve virtual machine scale sets of Azure",
		Long: "Serve resolver.v1 with the addresses of the instances of virtual machine scale sets. A locator is the resource id\n" +
			"of a scale set, as \"az vmss show --query id\" prints it.\n\n" +
			"Credentials are found as by all tools of Azure: AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_CLIENT_SECRET or\n" +
			"AZURE_CLIENT_CERTIFICATE_PATH, a workload identity, a managed identity, or the login of az. The role Reader on\n" +
			"the scale sets is enough.",
		Example: "  resolver-azure --listen unix:///run/resolvers/azure.sock \\\n" +
			"    --scope /subscriptions/00000000-0000-0000-0000-000000000000/resourceGroups/edge",
		Args:          cobra.NoArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return start(cmd.Context(), cfg, slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil)))
		},
	}
	f := cmd.Flags()
	f.StringVar(&cfg.listen.Listen, "listen", "", "unix:///path, or host:port with the three files below (required)")
	f.StringVar(&cfg.listen.Cert, "tls-cert-file", "", "certificate chain of the server, PEM")
	f.StringVar(&cfg.listen.Key, "tls-key-file", "", "its private key, PEM")
	f.StringVar(&cfg.listen.ClientCA, "tls-client-ca-file", "", "CA that clients must have a certificate of, PEM")
	f.StringVar(&cfg.cloud, "cloud", "public", "cloud of Azure: public, government or china")
	f.StringSliceVar(&cfg.scopes, "scope", nil,
		"answer only for scale sets below this resource id, such as a resource group; may be repeated (default: all that the credentials can read)")
	f.DurationVar(&cfg.interval, "interval", 30*time.Second, "how often to ask Azure for each scale set, 1s at least")
	f.BoolVar(&cfg.all, "all-ip-configurations", false,
		"list the addresses of all IP configurations of all network interfaces, not only the primary one of each IP family")
	if err := cmd.MarkFlagRequired("listen"); err != nil {
		panic(err) // the flag does not exist
	}
	return cmd
}

// start serves Azure itself.
func start(ctx context.Context, cfg config, log *slog.Logger) error {
	where, ok := clouds[cfg.cloud]
	if !ok {
		return fmt.Errorf("--cloud %q is none of public, government, china", cfg.cloud)
	}
	options := azcore.ClientOptions{Cloud: where}
	credential, err := azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: options})
	if err != nil {
		return fmt.Errorf("finding credentials: %w", err)
	}
	return run(ctx, cfg, azure{credential: credential, options: arm.ClientOptions{ClientOptions: options}, all: cfg.all}, log)
}
