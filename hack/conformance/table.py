#!/usr/bin/env python3
"""What the node specs came to.

table.py [--areas] [--all] [--against BASELINE] JUNIT...
    Counts, and a line with a short reason for each spec that failed.
    --areas    a table of the areas: specs, passed, failed, seconds
    --all      every spec with its result and seconds
    --against  which specs fail here and pass in the baseline; exit 1 if there are any
    --those    a file of names: exit 1 unless each of them ran and passed
table.py --focus AREA
table.py --focus-those FILE
    The regular expression that selects an area's specs, or those that a file names.
"""
import argparse
import collections
import re
import sys
import xml.etree.ElementTree as ET

# The first that matches a spec's name is its area.
AREAS = [
    ("mirror pods", r"MirrorPod"),
    ("order of containers", r"Containers Lifecycle"),
    ("deleted pods", r"Deleted pods|Pod SIGKILL"),
    ("hostname", r"Hostname of Pod"),
    ("metrics and logs", r"Summary API|ContainerMetrics|ContainerLogPath"),
    ("devices and cpus", r"Device Plugin|CPU Manager|POD Resources|Swap"),
    ("garbage collection", r"GarbageCollect"),
    ("probes of sidecars", r"Probing restartable init container"),
    ("probes", r"Probing container"),
    ("hooks of sidecars", r"Restartable Init Container Lifecycle Hook"),
    ("lifecycle hooks", r"Container Lifecycle Hook"),
    ("init containers", r"InitContainer"),
    ("ephemeral containers", r"Ephemeral Containers"),
    ("image pulls", r"when running a container with a new image"),
    ("termination and restart", r"Container Runtime"),
    ("command and arguments", r"\] Containers should|Variable Expansion"),
    ("environment", r"\[sig-node\] (ConfigMap|Secrets|Downward API)"),
    ("/etc/hosts", r"EtcHosts|hostAliases"),
    ("kubelet basics", r"\] Kubelet "),
    ("admission and RuntimeClass", r"PodOSRejection|RuntimeClass"),
    ("pods", r"\] Pods should"),
    ("security context", r"Security Context|PrivilegedPod"),
    ("sysctls", r"Sysctls"),
    ("network", r"sig-network"),
    ("emptyDir", r"EmptyDir"),
    ("hostPath", r"HostPath"),
    ("projected volumes", r"\] Projected"),
    ("configMap volumes", r"sig-storage\] ConfigMap"),
    ("secret volumes", r"sig-storage\] Secrets"),
    ("downward API volumes", r"Downward API volume"),
    ("other", r""),
]

Spec = collections.namedtuple("Spec", "result seconds reason")


def clean(name):
    name = re.sub(r"^\[It\] ", "", name)
    conformance = " [Conformance]" if "[Conformance]" in name else ""
    return re.sub(r"\s*\[(?!sig-[a-z]+\]|Slow|Serial)[^\]]*\]", "", name).strip() + conformance


def reason(case):
    node = next((n for n in case if n.tag in ("failure", "error")), None)
    if node is None:
        return ""
    text = (node.get("message") or "") + "\n" + (node.text or "")
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return re.sub(r"\s+", " ", line)[:220]


def read(paths):
    specs = {}
    for path in paths:
        for case in ET.parse(path).getroot().iter("testcase"):
            name, status = case.get("name", ""), case.get("status", "")
            seconds = float(case.get("time") or 0)
            skipped = case.find("skipped") is not None or status in ("skipped", "pending")
            if not name.startswith("[It]") or skipped and seconds == 0:
                continue  # no spec, or not selected
            failed = case.find("failure") is not None or case.find("error") is not None
            result = "failed" if failed else "skipped" if skipped else "passed"
            specs[clean(name)] = Spec(result, seconds, reason(case) if result != "passed" else "")
    return specs


def area(name):
    return next(area for area, pattern in AREAS if re.search(pattern, name))


def focus(wanted):
    pattern = dict(AREAS).get(wanted)
    if not pattern:
        sys.exit(f"there is no area {wanted!r}; there are: " + ", ".join(area for area, pattern in AREAS if pattern))
    label = r"\[NodeConformance\]"
    return f"({pattern}).*{label}|{label}.*({pattern})"


def names(path):
    with open(path, encoding="utf-8") as file:
        return [line for line in file.read().splitlines() if line]


def focus_those(path):
    # After each word of a full name there may be labels, which clean() leaves out.
    labels = r"( \[[^]]*\])*"
    words = (re.sub(r" \[Conformance\]$", "", name).split() for name in names(path))
    return "|".join(f"{labels} ".join(map(re.escape, name)) + f"{labels}$" for name in words)


def those(specs, path):
    """Whether each spec that the file names ran and passed."""
    wanted = names(path)
    absent = [name for name in wanted if name not in specs]
    failed = [name for name in wanted if name in specs and specs[name].result != "passed"]
    print(f"\nof the {len(wanted)} that were asked for, {len(absent)} did not run and {len(failed)} did not pass")
    for name in absent:
        print(f"not run: {name}")
    return not absent and not failed


def print_areas(specs):
    rows = collections.OrderedDict((area, [0, 0, 0, 0.0]) for area, _ in AREAS)
    for name, spec in specs.items():
        row = rows[area(name)]
        row[0] += 1
        row[1] += spec.result == "passed"
        row[2] += spec.result == "failed"
        row[3] += spec.seconds
    print("\n| area | specs | passed | failed | s |\n|---|---|---|---|---|")
    for name, row in rows.items():
        if row[0]:
            print(f"| {name} | {row[0]} | {row[1]} | {row[2]} | {row[3]:.0f} |")
    print()


def compare(specs, path):
    """Whether nothing fails here that passes in the baseline."""
    with open(path, encoding="utf-8") as file:
        columns = (line.rstrip("\n").split("\t") for line in file)
        baseline = {column[2]: column[0] for column in columns if len(column) > 2}
    worse = sorted(n for n, spec in specs.items() if spec.result != "passed" and baseline.get(n) == "passed")
    absent = [n for n in baseline if n not in specs]
    print(f"\nbeside the baseline: {len(worse)} fail here only, {len(absent)} of {len(baseline)} not run")
    for name in worse:
        print(f"worse: {name}")
    return not worse


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("junit", nargs="*")
    parser.add_argument("--areas", action="store_true")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--against")
    parser.add_argument("--focus")
    parser.add_argument("--those")
    parser.add_argument("--focus-those")
    args = parser.parse_args()
    if args.focus:
        print(focus(args.focus))
        return
    if args.focus_those:
        print(focus_those(args.focus_those))
        return
    specs = read(args.junit)
    count = collections.Counter(spec.result for spec in specs.values())
    if not specs:
        sys.exit("no spec ran")
    total = sum(spec.seconds for spec in specs.values())
    print(f"{len(specs)} specs: {count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped; {total:.0f} s of spec time")
    if args.areas:
        print_areas(specs)
    for name, spec in sorted(specs.items()):
        if args.all or spec.result != "passed":
            print(f"{spec.result:8}{spec.seconds:6.1f} s  {name}")
            if spec.reason:
                print(f"                  {spec.reason}")
    worse = args.against and not compare(specs, args.against)
    lacking = args.those and not those(specs, args.those)
    if worse or lacking:
        sys.exit(1)


if __name__ == "__main__":
    main()
