# Sourced by the scripts that compare Regroup with its peers.

# peers_venv makes, once for each content of requirements.txt, a virtual environment of several GB under
# $XDG_CACHE_HOME/regroup with its packages and DeepSpeed, and sets `python` to its interpreter.
peers_venv() {
  local here wanted venv
  here=$(dirname "${BASH_SOURCE[0]}")
  wanted=$(cat "$here/requirements.txt" "$here/venv.sh" | sha256sum | cut -c1-16)
  venv=${XDG_CACHE_HOME:-$HOME/.cache}/regroup/peers-venv
  python=$venv/bin/python
  [[ -e $venv/done && $(<"$venv/done") == "$wanted" ]] && return
  rm -rf "$venv"
  mkdir -p "$(dirname "$venv")"
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r "$here/requirements.txt"
  # Built from source against the torch that is there; none of its compiled operators is used.
  DS_BUILD_OPS=0 "$venv/bin/pip" install -q --disable-pip-version-check --no-build-isolation deepspeed==0.19.8
  echo "$wanted" >"$venv/done"
}
