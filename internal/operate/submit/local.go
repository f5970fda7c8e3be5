package submit

import (
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// How libraries and the runner say what a machine lacks.
var (
	noModule  = lazy.Regexp(`(?m)^(?:ModuleNotFoundError|ImportError): No module named '?([\w.]{1,100})`)
	noLibrary = lazy.Regexp(`(?m)^(?:ImportError|OSError): (lib[\w.+-]{1,100}): cannot open shared object file`)
	noProgram = lazy.Regexp(`(?m)^FileNotFoundError: \[Errno 2\] No such file or directory: '([\w.+-]{1,100})'$`)
	notOnPath = lazy.Regexp(`[\w.+-]{1,100} is not on the PATH`)
	noGPU     = lazy.Regexp(`torch sees no GPU|Found no NVIDIA driver|Torch not compiled with CUDA enabled|` +
		`No (?:CUDA|HIP) GPUs are available|no (?:CUDA|ROCm)-capable device|(?:CUDA|HIP) driver version is insufficient|` +
		`lib(?:cuda|amdhip64)\.so[.\d]*: cannot open shared object|\b0 active drivers|(?:cuda|hip)Error(?:NoDevice|InsufficientDriver)|` +
		`(?:hip|cuda)GetDeviceCount`)
)

// tools are programs that torch and Triton miss in words of their own.
var tools = []struct{ message, name string }{
	{"CUDA_HOME environment variable is not set", "nvcc"},
	{"Ninja is required to load C++ extensions", "ninja"},
	{"find C compiler", "gcc"},
}

// forGPUs are modules and programs that are hardly of use without a GPU.
var forGPUs = []string{"torch", "triton", "cupy", "cutlass", "tilelang", "nvcc"}

// Missing returns what the machine lacks that the evaluation needed, as a clause such as "python3
// has no module torch", or "" if nothing of it is known, or a case passed. It believes what
// programs print.
func Missing(r *result.Result) string {
	if m := notOnPath().FindString(r.Error); m != "" && !r.Success {
		return m
	}
	if strings.Contains(r.Error, "needs a GPU, and none is seen here") && !r.Success {
		return "there is no GPU that programs can use"
	}
	for _, run := range r.Runs {
		ev := run.Value
		if c := ev.Compilation; ev.Run == nil && c != nil && !c.NvccFound {
			return "nvcc is not on the PATH" + alsoNoGPU(r.System, "nvcc")
		}
		if ev.Run == nil || ev.Run.Passed {
			continue
		}
		texts := []string{ev.Run.Stderr}
		for _, m := range ev.Run.Result {
			switch {
			case strings.HasSuffix(m.Key, ".status") && m.Value == "pass", strings.HasSuffix(m.Key, ".mean"):
				return ""
			case strings.HasSuffix(m.Key, ".error"), strings.HasSuffix(m.Key, ".message"):
				texts = append(texts, m.Value)
			}
		}
		if c := ev.Compilation; c != nil {
			texts = append(texts, c.Stderr)
		}
		return missing(r.System, strings.Join(texts, "\n"))
	}
	return ""
}

// alsoNoGPU says that the machine has no GPU, if what is missing is for GPUs: who installs it would
// learn that next.
func alsoNoGPU(sys *result.System, name string) string {
	if (sys == nil || sys.GPU == "") && slices.Contains(forGPUs, name) {
		return ", and there is no GPU that programs can use"
	}
	return ""
}

func missing(sys *result.System, output string) string {
	if m := noModule().FindStringSubmatch(output); m != nil {
		name, _, _ := strings.Cut(m[1], ".")
		return "python3 has no module " + name + alsoNoGPU(sys, name)
	}
	for _, t := range tools {
		if strings.Contains(output, t.message) {
			return t.name + " is not on the PATH" + alsoNoGPU(sys, t.name)
		}
	}
	if noGPU().MatchString(output) {
		switch {
		case sys == nil || sys.GPU == "":
			return "there is no GPU that programs can use"
		case strings.Contains(output, "Torch not compiled with CUDA"):
			return "torch " + text.Line(sys.Torch, 40) + " is built without CUDA"
		}
	}
	if m := noLibrary().FindStringSubmatch(output); m != nil {
		return "the library " + m[1] + " is not installed"
	}
	if m := noProgram().FindStringSubmatch(output); m != nil {
		return m[1] + " is not on the PATH"
	}
	return ""
}
