package hostile

import (
	"net/http"
	"net/url"
	"strings"
)

// asks makes a request from each line: a method, a path and, after another space, a body.
// The method and the path are its name.
func asks(group string, want Want, lines ...string) []Request {
	var list []Request
	for _, line := range lines {
		method, rest, _ := strings.Cut(line, " ")
		path, body, _ := strings.Cut(rest, " ")
		list = append(list, Request{Group: group, Name: method + " " + named(path), Want: want, Method: method, Path: path, Body: body})
	}
	return list
}

// named formats a path for display.
func named(path string) string {
	name, query, _ := strings.Cut(path, "?")
	if text, err := url.QueryUnescape(query); query != "" && err == nil {
		name += "?" + text
	}
	return strings.NewReplacer("{", "", "}", "").Replace(name)
}

// ownContainer is what a job must not do to its own containers.
func ownContainer() []Request {
	return append(asks("own container", Refused,
		`POST /containers/{own}/update {"CpusetCpus":"0-4095","Memory":0,"PidsLimit":-1}`,
		`POST /containers/{own}/exec {"Cmd":["true"]}`,
		`POST /v1.45/containers/{own}/exec {"Cmd":["true"],"Privileged":true,"User":"0"}`,
		`POST /exec/{own}/start {"Detach":true}`,
		`GET /exec/{own}/json`,
		`POST /exec/{own}/resize?h=1&w=1`,
		`POST /containers/{own}/rename?name={name}-renamed`,
		`POST /containers/{own}/pause`,
		`POST /containers/{own}/unpause`,
		`POST /containers/{own}/restart`,
		`POST /commit?container={own}&repo={name}&tag=commit {}`,
		`GET /containers/{own}/archive?path=/`,
		`HEAD /containers/{own}/archive?path=/`,
		`PUT /containers/{own}/archive?path=/ x`,
		`POST /containers/{own}/copy {"Resource":"/etc/passwd"}`,
		`GET /containers/{own}/export`,
		`GET /containers/{own}/changes`,
		`GET /containers/{own}/top`,
		`GET /containers/{own}/stats?stream=0`,
		`GET /containers/{own}/checkpoints`,
		`POST /containers/{own}/checkpoints {"CheckpointID":"x","CheckpointDir":"/etc","Exit":false}`,
		`DELETE /containers/{own}/checkpoints/x`,
		`POST /containers/{own}/start?checkpoint=x&checkpoint-dir=/etc`,
		`POST /containers/{own}/kill?signal=TERM&signal=KILL`,
		`POST /containers/{own}/kill?signal=TERM%20x`,
		`DELETE /containers/{own}?link=1`,
		`POST /containers/prune?filters=%7B%22label%22%3A%5B%22{name}.none%22%5D%7D`,
	), Request{
		Group: "own container", Name: "GET /containers/own/attach/ws", Method: http.MethodGet, Path: "/containers/{own}/attach/ws?stream=1",
		Header: "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://docker\r\n",
	}, asks("own container", Blind, `GET /containers/{own}/json?size=1`)[0])
}

// otherContainers tries everything that a job may do to its own containers on a container
// that is not the slot's, by each of its names.
func otherContainers() []Request {
	const group = "other containers"
	var list []Request
	for _, ref := range []string{"{other}", "{short}", "{otherName}"} {
		list = append(list, asks(group, Refused,
			"GET /containers/"+ref+"/json",
			"GET /containers/"+ref+"/logs?stdout=1",
			"POST /containers/"+ref+"/start",
			"POST /containers/"+ref+"/wait?condition=next-exit",
			"POST /containers/"+ref+"/resize?h=1&w=1",
			"POST /containers/"+ref+"/kill?signal=0",
			"POST /containers/"+ref+"/stop?t=0",
			"POST /containers/"+ref+"/update {\"Memory\":67108864}",
			"POST /containers/"+ref+"/exec {\"Cmd\":[\"true\"]}",
			"GET /containers/"+ref+"/archive?path=/",
		)...)
		attach := asks(group, Refused, "POST /containers/"+ref+"/attach?stream=1&stdin=1&stdout=1&logs=1")[0]
		attach.Header = "Connection: Upgrade\r\nUpgrade: tcp\r\n"
		list = append(list, attach)
	}
	filter := func(json string) string {
		return "GET /containers/json?all=1&filters=" + strings.NewReplacer(`{`, "%7B", `}`, "%7D", `"`, "%22", `[`, "%5B", `]`, "%5D", "<", "{", ">", "}").Replace(json)
	}
	list = append(list, asks(group, Refused,
		filter(`{"before":["<other>"]}`),
		filter(`{"since":["<otherName>"]}`),
		filter(`{"volume":["/"]}`),
		filter(`{"network":["bridge"]}`),
		filter(`{"label":[],"label":[]}`),
		filter(`[]`),
	)...)
	list = append(list, asks(group, Blind,
		"GET /containers/json?all=1",
		"GET /containers/json?all=1&size=1&limit=1000",
		filter(`{"name":["<otherName>"]}`),
		filter(`{"id":["<other>"]}`),
		filter(`{"ancestor":["<image>"]}`),
		filter(`{"label":["kbnode.slot=4095"]}`),
		filter(`{"label":{"kbnode.slot=4095":true},"status":["created","running","exited"]}`),
	)...)
	// Last, because without a guard the rest would find nothing.
	return append(list, asks(group, Refused, "DELETE /containers/{short}", "DELETE /containers/{otherName}", "DELETE /containers/{other}?force=1&v=1")...)
}

// engine is what else the engine can do.
func engine() []Request {
	const none = "filters=%7B%22label%22%3A%5B%22{name}.none%22%5D%7D"
	list := asks("engine", Refused,
		`POST /build?t={name}:built`,
		`POST /v1.45/build?remote=http%3A%2F%2F127.0.0.1%3A1%2Fx&t={name}:built&networkmode=host`,
		`POST /build/prune?filters=%7B%22id%22%3A%5B%22{name}.none%22%5D%7D`,
		`POST /build/cancel?id={name}`,
		`POST /images/load`,
		`GET /images/get?names={image}`,
		`GET /images/{image}/get`,
		`GET /images/json`,
		`GET /images/{image}/history`,
		`GET /images/search?term={name}`,
		`POST /images/{image}/push`,
		`POST /images/{image}/tag?repo={name}&tag=tagged`,
		`DELETE /images/{name}:none`,
		`POST /images/prune?`+none,
		`POST /images/create?fromSrc=http%3A%2F%2F127.0.0.1%3A1%2Fx.tar&repo={name}`,
		`POST /images/create?fromSrc=-&repo={name} x`,
		`POST /images/create`,
		`POST /images/create?fromImage=127.0.0.1:1/{name}`,
		`POST /images/create?fromImage=..%2f..%2fvolumes&tag=x`,
		`GET /distribution/{image}/json`,
		`POST /auth {"username":"a","password":"b","serveraddress":"127.0.0.1:1"}`,
		`GET /events?since=0`,
		`GET /system/df`,
		`GET /swarm`,
		`POST /swarm/init {"ListenAddr":"{name}"}`,
		`POST /swarm/join {"ListenAddr":"{name}","RemoteAddrs":["{name}"],"JoinToken":"x"}`,
		`GET /nodes`,
		`GET /tasks`,
		`GET /services`,
		`POST /services/create {"Name":"{name}/x","TaskTemplate":{"ContainerSpec":{"Image":"{image}"}}}`,
		`GET /secrets`,
		`POST /secrets/create {"Name":"{name}/x","Data":"eA=="}`,
		`POST /configs/create {"Name":"{name}/x","Data":"eA=="}`,
		`GET /plugins`,
		`GET /plugins/privileges?remote=127.0.0.1%3A1%2F{name}`,
		`POST /plugins/pull?remote=127.0.0.1%3A1%2F{name} []`,
		`POST /plugins/{name}/enable`,
		`GET /volumes`,
		`POST /volumes/create {"Name":"{name}","Driver":"local","DriverOpts":{"type":"none","o":"bind","device":"/"}}`,
		`DELETE /volumes/{name}`,
		`POST /volumes/prune?`+none,
		`GET /networks/bridge`,
		`POST /networks/create {"Name":"{name}","Driver":"bridge"}`,
		`POST /networks/bridge/connect {"Container":"{own}"}`,
		`POST /networks/bridge/disconnect {"Container":"{other}","Force":true}`,
		`DELETE /networks/{name}`,
		`POST /networks/prune?`+none,
	)
	for _, path := range []string{"/session", "/grpc"} {
		list = append(list, Request{
			Group: "engine", Name: "POST " + path + " with an upgrade", Method: http.MethodPost, Path: path,
			Header: "Connection: Upgrade\r\nUpgrade: h2c\r\nX-Docker-Expose-Session-Uuid: x\r\n",
		})
	}
	auth := asks("engine", Refused, "POST /images/create?fromImage=127.0.0.1:1/{name}&tag=x")[0]
	auth.Name, auth.Header = "a pull with credentials of 20 KB", "X-Registry-Auth: "+strings.Repeat("A", 20<<10)+"\r\n"
	list = append(list, auth)
	return append(list, asks("engine", Blind, "GET /info", "GET /version", "GET /networks")...)
}
