# The wires of a pair: both QEMUs connect here, and each frame (4 bytes of length first)
# goes to the other side of its wire.  What a side does not take is dropped in the end, as
# on Ethernet.  Joined directly, QEMU would hold it instead: with the far NIC down, the
# near guest stands still (7.2, stream), or rxe takes 50 s to destroy a QP (dgram).
import selectors, socket, sys
LIMIT = 4 << 20                         # bytes waiting for one side
sel = selectors.DefaultSelector()
READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
class Side:
    def __init__(self, path):
        self.conn, self.got, self.out = None, bytearray(), bytearray()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(path); self.listener.listen()
        sel.register(self.listener, READ, self.accept)
    def accept(self, _):
        self.conn = self.listener.accept()[0]
        self.conn.setblocking(False)
        sel.register(self.conn, READ, self.ready)
    def gone(self):
        if self.conn:
            sel.unregister(self.conn); self.conn.close()
        self.conn, self.got, self.out = None, bytearray(), bytearray()
    def flush(self):
        if not self.conn: return
        try: del self.out[:self.conn.send(self.out)]
        except BlockingIOError: pass
        except OSError: return self.gone()
        sel.modify(self.conn, READ | WRITE if self.out else READ, self.ready)
    def ready(self, what):
        if what & WRITE: self.flush()
        if not (what & READ and self.conn): return
        try: data = self.conn.recv(1 << 18)
        except BlockingIOError: return
        except OSError: data = b""
        if not data: return self.gone()
        self.got += data
        at = 0
        while len(self.got) - at >= 4:
            end = at + 4 + int.from_bytes(self.got[at:at + 4], "big")
            if end > len(self.got): break
            if self.far.conn and len(self.far.out) < LIMIT: self.far.out += self.got[at:end]
            at = end
        del self.got[:at]
        if self.far.out: self.far.flush()
for wire in sys.argv[2:]:
    a, b = Side(f"{sys.argv[1]}/{wire}.a"), Side(f"{sys.argv[1]}/{wire}.b")
    a.far, b.far = b, a
open(f"{sys.argv[1]}/wired", "w").close()
while True:
    for key, what in sel.select(): key.data(what)
