package task

import (
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/payload"
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

type definition struct {
	document
	t    *Task
	size int // bytes of all files read so far
}

func (d *definition) read(root *yaml.Node) {
	members, ok := d.group(root, "top level", "files:, lang: and config:")
	if !ok {
		return
	}
	d.known(members, "", topKeys)
	at := map[string]pair{}
	for _, m := range members {
		at[m.key] = m
	}
	for _, key := range []string{"files", "lang", "config"} {
		if _, ok := at[key]; !ok {
			d.Add(root.Line, "%s is missing; write it, as in the examples", key)
		}
	}
	t := d.t
	t.Lang = d.choice(at, "lang", "", Python, CUDA)
	if m, ok := at["files"]; ok {
		d.files(m.value)
	}
	if m, ok := at["config"]; ok {
		d.config(m)
	}
	t.RankingBy = d.choice(at, "ranking_by", t.RankingBy, "last", "mean", "geom")
	t.MultiGPU = d.flag(at, "multi_gpu")
	tests, benchmarks := d.cases(at, "tests"), d.cases(at, "benchmarks")
	t.Tests, t.Benchmarks = len(tests), len(benchmarks)
	t.common.Set("benchmarks", benchmarks)
	t.common.Set("tests", tests)
	t.common.Set("test_timeout", d.timeout(at, "test_timeout", &t.TestTimeout))
	t.common.Set("benchmark_timeout", d.timeout(at, "benchmark_timeout", &t.BenchmarkTimeout))
	t.common.Set("ranked_timeout", d.timeout(at, "ranked_timeout", &t.RankedTimeout))
	t.common.Set("ranking_by", t.RankingBy)
	t.common.Set("seed", d.seed(at))
	t.common.Set("multi_gpu", t.MultiGPU)
	d.templates(at)
}

// templates reads the starting points for a submission.
func (d *definition) templates(at map[string]pair) {
	d.t.Templates = map[string]string{}
	m, ok := at["templates"]
	if !ok || isNull(m.value) {
		return
	}
	members, _ := d.group(m.value, "templates", "Python: submission.py")
	d.known(members, "templates.", templates)
	for _, e := range members {
		if source, ok := d.word(e, "templates."+e.key); ok {
			d.t.Templates[e.key] = d.text(e.line, source)
		}
	}
}

func (d *definition) config(m pair) {
	hint := map[string]string{Python: "main: eval.py", CUDA: "sources: [eval.cu]"}[d.t.Lang]
	if hint == "" {
		return // lang is already refused, so the valid keys are unknown
	}
	members, ok := d.group(m.value, "config", hint)
	if !ok {
		return
	}
	keys := pythonKeys
	if d.t.Lang == CUDA {
		keys = cudaKeys
		d.t.config.Set("defines", &payload.Object{})
		d.t.config.Set("compile_flags", []payload.Value{})
		d.t.config.Set("include_dirs", []payload.Value{})
	}
	d.known(members, "config.", keys)
	needed, _, _ := strings.Cut(hint, ":")
	if !slices.ContainsFunc(members, func(e pair) bool { return e.key == needed }) {
		d.Add(m.line, "config: %s is missing, which lang %s needs; write %s", needed, d.t.Lang, hint)
	}
	var headers []*yaml.Node
	for _, e := range members {
		if !slices.Contains(keys, e.key) {
			continue
		}
		switch e.key {
		case "main":
			if name, ok := d.word(e, "config.main"); ok {
				d.isFile(e.value.Line, "config.main", name)
				d.t.config.Set("main", name)
			}
		case "sources":
			list := d.list(e.value, "config.sources", "[eval.cu]")
			for _, n := range list {
				if name, ok := d.word(pair{value: n}, "config.sources"); ok {
					d.isFile(n.Line, "config.sources", name)
					d.t.compiled = append(d.t.compiled, name)
				}
			}
			if len(list) == 0 && len(d.List) == 0 {
				d.Add(e.line, "config.sources is empty; write the files to compile, such as [eval.cu]")
			}
		case "headers": // all files that are not compiled are headers, listed or not
			headers = d.list(e.value, "config.headers", "[util.h]")
		case "arch":
			d.arch(e.value)
		case "defines":
			d.t.config.Set(e.key, d.defines(e.value))
		default:
			list := []payload.Value{}
			for _, w := range d.words(e.value, "config."+e.key, map[string]string{"compile_flags": "[-lineinfo]", "include_dirs": "[include]"}[e.key]) {
				list = append(list, w)
			}
			d.t.config.Set(e.key, list)
		}
	}
	for _, n := range headers {
		name, ok := d.word(pair{value: n}, "config.headers")
		if ok && slices.Contains(d.t.compiled, name) {
			d.Add(n.Line, "config.headers: %s is also in config.sources; remove it from one of them", quote(name))
		} else if ok {
			d.isFile(n.Line, "config.headers", name)
		}
	}
}

// arch reads the architecture for which nvcc compiles if no GPU is given.
func (d *definition) arch(n *yaml.Node) {
	if !d.readable(n) || isNull(n) {
		return
	}
	if n.Kind != yaml.ScalarNode || !archForm().MatchString(n.Value) {
		d.Add(n.Line, "config.arch is %s; write it without sm_, such as 90a", kind(n))
		return
	}
	d.t.Arch = n.Value
}

func (d *definition) isFile(line int, key, name string) {
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
	d.Add(line, "%s: %s is not among the files; %s", key, quote(name), text)
}

func (d *definition) defines(n *yaml.Node) payload.Value {
	v := d.value(n)
	o, ok := v.(*payload.Object)
	if !ok {
		d.Add(n.Line, "config.defines is %s; write a group of keys such as NAME: value", shown(v))
	}
	for name, v := range o.All() {
		switch v.(type) {
		case []payload.Value, *payload.Object:
			d.Add(n.Line, "config.defines: %s is %s; write a string or a number", quote(name), shown(v))
		}
	}
	return o
}

func (d *definition) cases(at map[string]pair, key string) []payload.Value {
	list := []payload.Value{}
	m, ok := at[key]
	if !ok {
		return list
	}
	for _, n := range d.list(m.value, key, "{size: 1024, seed: 1}") {
		faults := len(d.List)
		v := d.value(n)
		o, ok := v.(*payload.Object)
		if !ok && len(d.List) == faults {
			d.Add(n.Line, "%s: this is %s; write a group of keys such as {size: 1024, seed: 1}", key, shown(v))
		}
		if _, there := o.Get("world_size"); ok && d.t.MultiGPU && !there {
			d.Add(n.Line, "%s: world_size is missing, which every case of a multi_gpu task needs; write the number of GPUs", key)
		}
		list = append(list, v)
	}
	return list
}
