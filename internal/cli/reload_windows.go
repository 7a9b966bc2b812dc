package cli

import "os"

// reloadSignal is nil: Windows has no such signal.
var reloadSignal os.Signal
