package task

import (
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/std/yamlfile"
)

// Keys of a task.yml; kernelbot refuses others.
var (
	topKeys = []string{
		"benchmark_timeout", "benchmarks", "config", "description", "files", "gpus", "lang", "libraries", "multi_gpu",
		"ranked_timeout", "ranking_by", "seed", "templates", "test_timeout", "tests", "validation",
	}
	pythonKeys = []string{"main"}
	cudaKeys   = []string{"arch", "compile_flags", "defines", "headers", "include_dirs", "sources"}
	templates  = []string{"CUDA", "Python", "Triton", "HIP", "CuteDSL"}
)

// Defaults of kernelbot.
const defaultTimeout = payload.Int("180")

// maxTimeout bounds a time limit in seconds. A day is far more than Buildkite
// allows a job here.
const maxTimeout = 86400

// Bounds of a task.yml.
const (
	maxYAML   = 1 << 20 // bytes
	shownMost = 20      // faults
)

// definition reads one task.yml and collects what is wrong with it. Nodes of keys that are not there
// are nil.
type definition struct {
	yamlfile.Faults
	t    *Task
	size int // bytes of all files read so far
}

// parse returns the root of the file; nil after a fault.
func (d *definition) parse(text []byte) *yaml.Node {
	if len(text) > maxYAML {
		d.Add(1, "is over %d bytes, which no task needs; move large parts to their own files", maxYAML)
		return nil
	}
	root, second, err := yamlfile.Parse(text)
	switch {
	case err != nil:
		line, msg := yamlfile.Explain(text, err)
		d.Add(max(1, line), "is not YAML: %s", msg)
	case root == nil:
		d.Add(1, "is empty; write files, lang, config and tests, as in the examples")
	case second > 0:
		d.Add(second, "a second YAML document begins; keep the first")
	default:
		return root
	}
	return nil
}

func (d *definition) read(root *yaml.Node) {
	at := d.group(root, "", topKeys)
	if at == nil {
		return
	}
	for _, key := range []string{"files", "lang", "config"} {
		if at[key] == nil {
			d.Add(root.Line, "%s is missing; write it, as in the examples", key)
		}
	}
	t := d.t
	t.Lang = d.choice(at["lang"], "lang", "", Python, CUDA)
	if n := at["files"]; n != nil {
		d.files(n)
	}
	if n := at["config"]; n != nil {
		d.config(n)
	}
	t.RankingBy = d.choice(at["ranking_by"], "ranking_by", t.RankingBy, "last", "mean", "geom")
	t.MultiGPU, _ = d.single(at["multi_gpu"], "multi_gpu", false, is[bool], "true or false").(bool)
	tests, benchmarks := d.cases(at["tests"], "tests"), d.cases(at["benchmarks"], "benchmarks")
	t.Tests, t.Benchmarks = len(tests), len(benchmarks)
	t.common.Set("benchmarks", benchmarks)
	t.common.Set("tests", tests)
	t.common.Set("test_timeout", d.timeout(at["test_timeout"], "test_timeout", &t.TestTimeout))
	t.common.Set("benchmark_timeout", d.timeout(at["benchmark_timeout"], "benchmark_timeout", &t.BenchmarkTimeout))
	t.common.Set("ranked_timeout", d.timeout(at["ranked_timeout"], "ranked_timeout", &t.RankedTimeout))
	t.common.Set("ranking_by", t.RankingBy)
	t.common.Set("seed", d.single(at["seed"], "seed", nil, is[payload.Int], "a whole number, or leave the key out"))
	t.common.Set("multi_gpu", t.MultiGPU)
	t.GPUs = d.words(at["gpus"], "gpus")
	t.Templates = map[string]string{}
	if n := at["templates"]; n != nil && n.Tag != "!!null" {
		for lang, n := range d.group(n, "templates.", templates) {
			t.Templates[lang] = d.text(n.Line, d.word(n, "templates."+lang))
		}
	}
}

func (d *definition) config(n *yaml.Node) {
	keys, hint := pythonKeys, "main: eval.py"
	switch d.t.Lang {
	case "":
		return // lang is already refused, so the valid keys are unknown
	case CUDA:
		keys, hint = cudaKeys, "sources: [eval.cu]"
	}
	at := d.group(n, "config.", keys)
	if at == nil {
		return
	}
	if needed, _, _ := strings.Cut(hint, ":"); at[needed] == nil {
		d.Add(n.Line, "config: %s is missing, which lang %s needs; write %s", needed, d.t.Lang, hint)
	}
	c := &d.t.config
	if n := at["main"]; n != nil {
		main := d.word(n, "config.main")
		d.isFile(n, "config.main", main)
		c.Set("main", main)
	}
	if d.t.Lang == Python {
		return
	}
	c.Set("defines", d.defines(at["defines"]))
	for _, key := range []string{"compile_flags", "include_dirs"} {
		var list []payload.Value
		for _, word := range d.words(at[key], "config."+key) {
			list = append(list, word)
		}
		c.Set(key, list)
	}
	d.t.compiled = d.words(at["sources"], "config.sources")
	for _, name := range d.t.compiled {
		d.isFile(at["sources"], "config.sources", name)
	}
	if n := at["sources"]; n != nil && len(d.t.compiled) == 0 && len(d.List) == 0 {
		d.Add(n.Line, "config.sources is empty; write the files to compile, such as [eval.cu]")
	}
	for _, name := range d.words(at["headers"], "config.headers") { // all files that are not compiled are headers, listed or not
		if slices.Contains(d.t.compiled, name) {
			d.Add(at["headers"].Line, "config.headers: %s is also in config.sources; remove it from one of them", quote(name))
		} else {
			d.isFile(at["headers"], "config.headers", name)
		}
	}
	if n := at["arch"]; n != nil && n.Tag != "!!null" { // for which nvcc compiles if no GPU is given
		d.t.Arch = n.Value
		if !IsArch(n.Value) {
			d.Add(n.Line, "config.arch is %s; write %s", kind(n), MeantArch(n.Value))
		}
	}
}

func (d *definition) isFile(n *yaml.Node, key, name string) {
	if d.has(name) || len(d.t.files) == 0 || d.Full() {
		return
	}
	var names []string
	for _, f := range d.t.files {
		names = append(names, f.name)
	}
	text := "add it there, or write the name of one"
	if best := nearest(name, names); best != "" {
		text = "write " + quote(best)
	}
	d.Add(n.Line, "%s: %s is not among the files; %s", key, quote(name), text)
}

func (d *definition) defines(n *yaml.Node) payload.Value {
	if n == nil {
		return &payload.Object{}
	}
	o, ok := d.value(n).(*payload.Object)
	if !ok {
		d.Add(n.Line, "config.defines is %s; write a group of keys such as NAME: value", kind(n))
	}
	for name, v := range o.All() {
		switch v.(type) {
		case []payload.Value, *payload.Object:
			d.Add(n.Line, "config.defines: %s is a %s; write a string or a number", quote(name), payload.TypeName(v))
		}
	}
	return o
}

func (d *definition) cases(n *yaml.Node, key string) []payload.Value {
	list := []payload.Value{}
	var nodes []yaml.Node
	d.decode(n, key, &nodes, "a list such as - {size: 1024, seed: 1}")
	for _, n := range nodes {
		faults := len(d.List)
		v := d.value(&n)
		o, ok := v.(*payload.Object)
		if !ok && len(d.List) == faults {
			d.Add(n.Line, "%s: this is %s; write a group of keys such as {size: 1024, seed: 1}", key, kind(&n))
		}
		if _, there := o.Get("world_size"); ok && d.t.MultiGPU && !there {
			d.Add(n.Line, "%s: world_size is missing, which every case of a multi_gpu task needs; write the number of GPUs", key)
		}
		list = append(list, v)
	}
	return list
}
