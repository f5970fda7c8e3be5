package doctor

import "testing"

func TestImageCommand(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ script, want string }{
		{"docker pull x:latest", "docker pull"},
		{"docker compose pull", "docker compose pull"},
		{"docker-compose pull", "docker-compose pull"},
		{"/usr/local/bin/docker-compose -f /srv/a.yml --profile x pull -q", "docker-compose pull"},
		{"docker-compose up -d --pull always", "docker-compose up --pull always"},
		{"docker compose up --pull=always -d", "docker compose up --pull=always"},
		{"docker --context x compose -f y pull", "docker compose pull"},
		{"docker -H tcp://u:p@h:1 --tlsverify image pull x", "docker image pull"},
		{"docker run --rm --pull always x", "docker run --pull always"},
		{"docker build --pull -t x .", "docker build --pull"},
		{"docker run -v /var/run/docker.sock:/var/run/docker.sock ghcr.io/nicholas-fedor/watchtower:1.2 --run-once", "docker run ghcr.io/nicholas-fedor/watchtower:1.2"},
		{"docker run -v /var/run/docker.sock:/s docker:cli docker system prune --all --force", "docker system prune --all"},
		{"docker system prune -f --volumes", "docker system prune"},
		{"docker image prune --force --all --filter until=24h", "docker image prune --all"},
		{"docker compose down --rmi all", "docker compose down --rmi"},
		{"podman auto-update", "podman auto-update"},
		{"podman --root /x image prune -af", "podman image prune -af"},
		{"nerdctl -n k8s.io rmi x", "nerdctl rmi"},
		{"ctr -n moby images rm x", "ctr images rm"},
		{"ctr --address=/run/x i pull y", "ctr i pull"},
		{"crictl -r unix:///run/x rmi --prune", "crictl rmi"},
		{"docker images -q | xargs -r docker rmi -f", "docker rmi"},
		{"OLD=\"$(docker images -q x | xargs docker rmi)\"", "docker rmi"},
		{"docker rmi `docker images -q`", "docker rmi"},
		{"sudo -u root env A=b nice -n 19 timeout 10m docker pull x", "docker pull"},
		{"sh -c 'sleep 3; docker pull x'", "docker pull"},
		{"flock -n /run/l -c \"bash -lc 'docker compose pull'\"", "docker compose pull"},
		{"-/bin/sh -ec \"docker image \\\n rm x\"", "docker image rm"},
		{"@-/usr/bin/docker pull x", "docker pull"},
		{"if ! $DOCKER_BIN pull x; then exit 1; fi", "docker pull"},
		{"${COMPOSE:-docker-compose} pull", "docker-compose pull"},
		{"echo starts && docker pull x >/dev/null 2>&1", "docker pull"},
		{"cat <<EOF\ndon't docker\nEOF\ndocker pull x", "docker pull"},
		{"sh <<-'EOF'\n\tdocker pull x\n\tEOF\n", "docker pull"},
		{"echo $((1<<2))\ndocker pull x\n", "docker pull"},
		{"/opt/update-image.sh --auto", "update-image.sh"},
		{"\"$(which docker)\" pull x", "docker pull"},
		{"D=$(command -v docker); `command -v docker-compose` pull", "docker-compose pull"},
		{"docker start watchtower", "docker start watchtower"},
		{"docker run --rm containrrr/watchtower:armhf-latest", "docker run containrrr/watchtower:armhf-latest"},
		{"docker run -d getwud/wud:8", "docker run getwud/wud:8"},
		{"docker load -i image.tar", "docker load"},
		{"podman-compose -f x pull", "podman-compose pull"},
		{"[ -x /usr/bin/docker ] && docker pull x", "docker pull"},

		{"# docker pull x", ""},
		{"true # docker pull x", ""},
		{"echo docker pull x", ""},
		{"logger \"docker pull x failed\"", ""},
		{"M='run docker pull x first'", ""},
		{"ssh other docker system prune -af", ""},
		{"cat <<EOF\n  docker pull x\nEOF\n", ""},
		{"docker image prune -f", ""},
		{"docker builder prune -af", ""},
		{"docker volume prune -a", ""},
		{"docker compose ps; docker images -a; git pull", ""},
		{"docker compose up -d", ""},
		{"docker compose up --pull never", ""},
		{"docker run --pull=missing x", ""},
		{"docker exec x apt-get pull", ""},
		{"docker stop watchtower", ""},
		{"docker start web", ""},
		{"docker run -d prom/watchtower-exporter", ""},
		{"git pull && docker restart x", ""},
		{"\"", ""},
		{"docker --context", ""},
	} {
		t.Run(tt.script, func(t *testing.T) {
			t.Parallel()
			if got := imageCommand(tt.script); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
