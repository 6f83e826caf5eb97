# Runs in the guest's root (the host's userland) as: guest.sh SIDE TOPOLOGY DECOY
side=$1 topo=$2 decoy=$3 rd=/run/softroce
exec > $rd/log.$side 2>&1
export PATH=/run/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export HOME=/tmp SOFTROCE_TOPOLOGY=$topo SOFTROCE_OUT=$rd/out
export A_DEV0=rxe_a0 A_IP0=192.0.2.1 A_DEV1=rxe_a1 A_IP1=198.51.100.1
export B_DEV0=rxe_b0 B_IP0=192.0.2.2 B_DEV1=rxe_b1 B_IP1=198.51.100.2
mark() { echo "<3>softroce: $1 at $(cut -d' ' -f1 /proc/uptime) s" > /dev/kmsg; }
n=$([ $side = a ] && echo 1 || echo 2)
hostname softroce-$side
ulimit -l unlimited; ulimit -n 65536
mkdir -p /run/bin

# The commands are collected and run in two batches: each exec costs 0.1 s here.
link() { echo "$*" >> /run/ip; }
rxe() { echo "link add rxe_$1 type rxe netdev $2" >> /run/rdma; }
link link set lo up
if [ $decoy = 1 ]; then      # first, so that it is the first in ibv_get_device_list
    link link add decoy0 type dummy
    link link set decoy0 mtu 4200 up
    link addr add 203.0.113.$n/24 dev decoy0
    rxe decoy decoy0
fi
if [ $topo = pair ]; then
    for dev in /sys/class/net/*; do     # MAC 52:54:00:00:0S:0R, R = 0, 1: rails; 9: control
        read -r mac < $dev/address
        case $mac in
            52:54:00:*:00) name=rail0 addr=192.0.2.$n;;
            52:54:00:*:01) name=rail1 addr=198.51.100.$n;;
            52:54:00:*:09) name=ctl addr=169.254.9.$n;;
            *) continue;;
        esac
        link link set ${dev##*/} name $name mtu 4200 up
        link addr add $addr/24 dev $name
    done
    for r in 0 1; do rxe $side$r rail$r; done
else
    # Both ends in one network namespace: rxe of 6.1 has its UDP socket in, and looks
    # routes up in, the initial namespace only.  So that packets between two local
    # addresses still cross the veth, the "local" table is asked only for packets that
    # came in by an interface; outgoing ones find the host routes below.
    for conf in all default; do echo 0 > /proc/sys/net/ipv4/conf/$conf/rp_filter; done
    for conf in all default; do echo 1 > /proc/sys/net/ipv4/conf/$conf/arp_ignore; done
    echo 1 > /proc/sys/net/ipv4/conf/default/accept_local
    for r in 0 1; do
        net=$([ $r = 0 ] && echo 192.0.2 || echo 198.51.100)
        link link add a$r mtu 4200 type veth peer name b$r mtu 4200
        link addr add $net.1/32 dev a$r
        link addr add $net.2/32 dev b$r
        for dev in a$r b$r; do
            link link set $dev up
            link rule add pref 10 iif $dev lookup local
            rxe $dev $dev
        done
        link route add $net.2 dev a$r src $net.1
        link route add $net.1 dev b$r src $net.2
    done
    link rule add pref 1 to 127.0.0.0/8 lookup local
    link rule del pref 0
fi
ip -batch /run/ip && rdma -b /run/rdma && rdma link || exit    # no status: 125

# on-b: in a pair, a busybox nc on b runs what it is sent and answers with the output; the
# status comes back by the directory that both guests share.
if [ $topo = solo ]; then
    printf '#!/bin/sh\nexec /bin/bash -c "$*" < /dev/null 2>&1\n' > /run/bin/on-b
else
    cat > /run/bin/agent <<'AGENT'
#!/bin/bash
read -r id line; eval "cmd=$line"
bash -c "$cmd" < /dev/null 2>&1
echo $? > /run/softroce/status.b.$id
AGENT
    cat > /run/bin/on-b <<'ONB'
#!/bin/bash
printf '%d %q\n' $$ "$*" | busybox nc -w 5 169.254.9.2 7
{ read -r status < /run/softroce/status.b.$$; } 2> /dev/null || exit 125    # b is gone
rm /run/softroce/status.b.$$; exit $status
ONB
fi
chmod +x /run/bin/*
if [ $side = b ]; then
    mark "b ready"
    exec busybox nc -ll -p 7 -e /run/bin/agent    # until the host ends this guest
fi
if [ $topo = pair ]; then
    for i in $(seq 300); do on-b true 2> /dev/null && break; sleep 0.1; done
    on-b true || exit       # b never came up: no status, so 125
fi
mark "command starts"
cd "$(cat $rd/cwd)"
bash $rd/cmd > $rd/stdout 2> $rd/stderr < /dev/null
echo $? > $rd/status
